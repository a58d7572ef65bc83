//! `vramtrace cap`: another limit for a process or a group that runs.

use std::time::Duration;

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

/// How long the command waits for the process to apply the limit. A process that makes CUDA calls applies it
/// at the next one; an idle process does not.
pub const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_millis(50);

pub fn run(args: Args) -> Outcome {
    let limit = match args.limit.as_str() {
        "none" => None,
        text => Some(parse(text)?),
    };
    let device = args.device.as_deref().map(parse_device).transpose()?;
    match (args.pid, args.group) {
        (Some(pid), _) => {
            print(&set_process_limit(pid, device.as_ref(), limit)?)?;
            Ok(DONE)
        }
        (None, Some(name)) => set_group_limit(&name, device.as_ref(), limit),
        (None, None) => Err(Failure::new("name a process (--pid) or a group (--group)")),
    }
}

fn parse(text: &str) -> Result<Limit, Failure> {
    let limit = policy::soft(text);
    limit.map_err(|why| Failure::new(format!("limit `{text}`: {why}; or `none`")))
}

/// The value of --device.
struct DeviceOption<'a> {
    text: &'a str,
    whose: Target,
}

fn parse_device(text: &str) -> Result<DeviceOption<'_>, Failure> {
    let whose = capspec::parse(&format!("{text}=1GiB")).map(|spec| spec.rules[0].target);
    match whose {
        Ok(whose) => Ok(DeviceOption { text, whose }),
        Err(_) => Err(Failure::new(format!(
            "--device `{text}` is no device; write an ordinal (0) or GPU-<uuid>"
        ))),
    }
}

/// A device in the page of the process or group.
struct DeviceUse {
    /// Index of the device in that page.
    number: usize,
    ordinal: u8,
    uuid: [u8; 16],
    total: u64,
    counted: u64,
}

impl DeviceUse {
    fn is(&self, named: Option<&DeviceOption>) -> bool {
        match named.map(|named| named.whose) {
            None | Some(Target::Others) => self.ordinal != u8::MAX,
            Some(Target::Ordinal(ordinal)) => u32::from(self.ordinal) == ordinal,
            Some(Target::Gpu(uuid) | Target::Mig(uuid)) => uuid == self.uuid,
        }
    }

    /// `pid 4711 cuda:0: 6.00 GiB of 80.00 GiB, 2.00 GiB in use`. `bytes`: the new limit; `None`: no limit.
    fn describe(&self, whose: &str, bytes: Option<u64>) -> String {
        let Some(bytes) = bytes else { return format!("{whose}: no cap") };
        let mut line = format!("{whose}: {} of {}", limit(bytes), size(self.total));
        let over = self.counted.saturating_sub(bytes);
        match over {
            0 => line.push_str(&format!(", {} in use", size(self.counted))),
            _ => line.push_str(&format!(
                "; {} are in use: new requests are refused until {} are freed",
                size(self.counted),
                size(over)
            )),
        }
        line
    }
}

/// The devices that --device names, or all. An error if there is none. `owner` is for the message.
fn matching_devices<'d>(
    known: &'d [DeviceUse],
    named: Option<&DeviceOption>,
    owner: &str,
) -> Result<Vec<&'d DeviceUse>, Failure> {
    let matching_devices: Vec<&DeviceUse> =
        known.iter().filter(|device| device.is(named)).collect();
    if !matching_devices.is_empty() {
        return Ok(matching_devices);
    }
    let all = known.iter().filter(|device| device.is(None));
    let all: Vec<String> = all
        .map(|device| format!("{} ({})", device.ordinal, uuid::text(&device.uuid, false)))
        .collect();
    Err(Failure::new(match (named, all.is_empty()) {
        (Some(DeviceOption { text, .. }), false) => {
            format!("--device {text}: {owner} uses no such device; it uses {}", all.join(", "))
        }
        _ => format!("{owner} uses no device yet: set the limit after its first CUDA call"),
    }))
}

/// Sets the cap of a process on all of its devices. `None`: no cap. Returns a line for each device.
#[cfg(feature = "top")]
pub fn set_everywhere(pid: u32, limit: Option<Limit>) -> Result<String, Failure> {
    set_process_limit(pid, None, limit)
}

fn set_process_limit(
    pid: u32,
    named: Option<&DeviceOption>,
    limit: Option<Limit>,
) -> Result<String, Failure> {
    let target = ControlTarget::find(pid).map_err(|missing| Failure::new(missing.message(pid)))?;
    let process = target.state()?;
    let known = process.devices.iter().map(|device| DeviceUse {
        number: device.ordinal.into(),
        ordinal: device.ordinal,
        uuid: device.uuid,
        total: device.total_bytes,
        counted: device.counted,
    });
    let known: Vec<DeviceUse> = known.collect();
    let mut out = String::new();
    for device in matching_devices(&known, named, &format!("process {pid}"))? {
        let bytes = limit.map(|limit| limit.bytes(device.total));
        if !target.order(device.ordinal, bytes)? {
            return Err(Failure::new(format!(
                "device {}: only devices 0 to 15 can be changed",
                device.ordinal
            )));
        }
        let acknowledged = target.obeys(device.ordinal, ACKNOWLEDGE_TIMEOUT)?;
        out.push_str(&device.describe(&format!("pid {pid} cuda:{}", device.ordinal), bytes));
        out.push_str(match (acknowledged, target.is_apart()) {
            (true, _) => "\n",
            (false, false) => " (from its next CUDA call on)\n",
            // The process is in another ipc namespace or has no shared memory: it polls a file once a second.
            (false, true) => " (from its first CUDA call in a second or later)\n",
        });
    }
    Ok(out)
}

fn set_group_limit(name: &str, named: Option<&DeviceOption>, limit: Option<Limit>) -> Outcome {
    policy::check_name(name).map_err(|why| Failure::new(format!("--group `{name}` {why}")))?;
    let group = Group::open(name).map_err(|problem| match problem {
        missing if missing.is_not_found() => Failure::new(format!(
            "--group {name}: you have no such group; `vramtrace ps` lists them"
        )),
        other => other.into(),
    })?;
    let Some(group) = group.filter(|group| !group.members.is_empty()) else {
        return Err(Failure::new(format!("--group {name}: none of its processes runs")));
    };
    let known = group.devices.iter().map(|(number, known)| DeviceUse {
        number: *number,
        ordinal: known.ordinal,
        uuid: known.uuid,
        total: known.total_bytes,
        counted: known.counted,
    });
    let known: Vec<DeviceUse> = known.collect();
    let mut out = String::new();
    for device in matching_devices(&known, named, &format!("group {name}"))? {
        let bytes = limit.map(|limit| limit.bytes(device.total));
        group.order(device.number, bytes)?;
        let whose = format!("group {name} {}", uuid::text(&device.uuid, false));
        out.push_str(&device.describe(&whose, bytes));
        out.push('\n');
    }
    print(&out)?;
    Ok(DONE)
}
