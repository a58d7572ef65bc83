//! `vramtrace cap`: another limit for a process or a group that runs.

use vramtrace_format::capspec::{self, Limit, Target};
use vramtrace_format::policy;
use vramtrace_format::uuid;
use vramtrace_reader::units::{limit, size};

use crate::console::print;
use crate::error::{DONE, Failure, Outcome};
use crate::live_processes::control::ControlTarget;
use crate::live_processes::group::Group;

#[derive(clap::Args)]
#[command(
    long_about = "Change what a running process, or a group of processes, may take.\n\n\
        It holds from the next CUDA call of the process on. The process keeps the memory that it \
        has: a limit below that refuses new requests until enough is freed. A user can change \
        the limits of their processes; root those of all.",
    after_help = "Examples:\n  \
        vramtrace cap --pid 4711 6GiB\n  \
        vramtrace cap --pid 4711 --device 1 50%\n  \
        vramtrace cap --pid 4711 none\n  \
        vramtrace cap --group training 12GiB"
)]
pub struct Args {
    /// A traced process, as `vramtrace ps` lists it
    #[arg(long, value_name = "PID", required_unless_present = "group", conflicts_with = "group")]
    pid: Option<u32>,
    /// A group, as VRAMTRACE_CAP_GROUP or --job-cap made it
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// One device that it uses, by the process's ordinal, or by GPU-<uuid> [default: all]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// 6GiB, 50% of the device, or none
    #[arg(value_name = "LIMIT")]
    limit: String,
}

pub fn run(args: Args) -> Outcome {
    let limit = match args.limit.as_str() {
        "none" => None,
        text => {
            let wrong = |why| Failure::new(format!("limit `{text}`: {why}; or `none`"));
            Some(policy::soft(text).map_err(wrong)?)
        }
    };
    let device = args.device.as_deref().map(DeviceOption::parse).transpose()?;
    print(&match (args.pid, args.group) {
        (Some(pid), _) => of_process(pid, device.as_ref(), limit)?,
        (None, Some(name)) => of_group(&name, device.as_ref(), limit)?,
        (None, None) => return Err(Failure::new("name a process (--pid) or a group (--group)")),
    })?;
    Ok(DONE)
}

/// The value of --device.
struct DeviceOption<'a> {
    text: &'a str,
    target: Target,
}

impl DeviceOption<'_> {
    fn parse(text: &str) -> Result<DeviceOption<'_>, Failure> {
        match capspec::parse(&format!("{text}=1GiB")).map(|spec| spec.rules[0].target) {
            Ok(target) => Ok(DeviceOption { text, target }),
            Err(_) => Err(Failure::new(format!(
                "--device `{text}` is no device; write an ordinal (0) or GPU-<uuid>"
            ))),
        }
    }
}

/// A device that a process or group uses.
struct DeviceInUse {
    /// Index of the device in the page of the process or group.
    number: usize,
    ordinal: u8,
    uuid: [u8; 16],
    total: u64,
    counted: u64,
}

impl DeviceInUse {
    fn is(&self, named: Option<&DeviceOption>) -> bool {
        match named.map(|named| named.target) {
            None | Some(Target::Others) => self.ordinal != u8::MAX,
            Some(Target::Ordinal(ordinal)) => u32::from(self.ordinal) == ordinal,
            Some(Target::Gpu(uuid) | Target::Mig(uuid)) => uuid == self.uuid,
        }
    }

    /// `: 6.00 GiB of 80.00 GiB, 2.00 GiB counted`. `bytes`: the new limit; `None`: no limit.
    fn describe(&self, bytes: Option<u64>) -> String {
        let Some(bytes) = bytes else { return ": no cap".into() };
        let (cap, total, used) = (limit(bytes), size(self.total), size(self.counted));
        match self.counted.saturating_sub(bytes) {
            0 => format!(": {cap} of {total}, {used} counted"),
            over => format!(
                ": {cap} of {total}; {used} counted: new requests are refused until {} are freed",
                size(over)
            ),
        }
    }
}

/// Orders a limit for the devices that --device names, or for all; returns a line for each. `order` gives its begin and end. An
/// error if there is no such device.
fn order_all(
    owner: &str,
    used: impl Iterator<Item = DeviceInUse>,
    named: Option<&DeviceOption>,
    limit: Option<Limit>,
    order: impl Fn(&DeviceInUse, Option<u64>) -> Result<(String, &'static str), Failure>,
) -> Result<String, Failure> {
    let used: Vec<DeviceInUse> = used.collect();
    let mut out = String::new();
    for device in used.iter().filter(|device| device.is(named)) {
        let bytes = limit.map(|limit| limit.bytes(device.total));
        let (begin, end) = order(device, bytes)?;
        out.push_str(&format!("{begin}{}{end}\n", device.describe(bytes)));
    }
    if !out.is_empty() {
        return Ok(out);
    }
    let all = used.iter().filter(|device| device.is(None));
    let all: Vec<String> = all
        .map(|device| format!("{} ({})", device.ordinal, uuid::text(&device.uuid, false)))
        .collect();
    Err(Failure::new(match named.filter(|_| !all.is_empty()) {
        Some(DeviceOption { text, .. }) => {
            format!("--device {text}: {owner} uses no such device; it uses {}", all.join(", "))
        }
        None => format!("{owner} uses no device yet: set the limit after its first CUDA call"),
    }))
}

fn of_process(
    pid: u32,
    named: Option<&DeviceOption>,
    limit: Option<Limit>,
) -> Result<String, Failure> {
    let target = ControlTarget::find(pid)?;
    let used = target.state()?.devices.into_iter().map(|device| DeviceInUse {
        number: device.ordinal.into(),
        ordinal: device.ordinal,
        uuid: device.uuid,
        total: device.total_bytes,
        counted: device.counted,
    });
    order_all(&format!("process {pid}"), used, named, limit, |device, bytes| {
        let applied = target.order(device.ordinal, bytes)?;
        Ok((format!("pid {pid} cuda:{}", device.ordinal), applied.text()))
    })
}

fn of_group(
    name: &str,
    named: Option<&DeviceOption>,
    limit: Option<Limit>,
) -> Result<String, Failure> {
    policy::check_name(name).map_err(|why| Failure::new(format!("--group `{name}` {why}")))?;
    let group = Group::find(name).ok_or_else(|| {
        Failure::new(format!("--group {name}: you have no such group; `vramtrace ps` lists them"))
    })?;
    let used = group.devices.iter().map(|(number, device)| DeviceInUse {
        number: *number,
        ordinal: device.ordinal,
        uuid: device.uuid,
        total: device.total_bytes,
        counted: device.counted,
    });
    order_all(&format!("group {name}"), used, named, limit, |device, bytes| {
        group.order(device.number, bytes);
        Ok((format!("group {name} {}", uuid::text(&device.uuid, false)), ""))
    })
}
