//! `vramtrace run --wait-for SIZE --wait-max TIME`: waits before the command starts until the devices have so much free.
//! It never waits inside a call of the program: there frameworks hold their locks.

use std::time::{Duration, Instant};

use vramtrace_format::capspec::{self, CapSpec};
use vramtrace_reader::report::wording::gpu_name;
use vramtrace_reader::units::{gib, several};

use super::run_fix::within;
use crate::console::message;
use crate::driver::nvml::free::{FreeMemory, FreeOn};
use crate::error::Failure;
use crate::live_processes::group::Group;
use crate::live_processes::wait_queue::{Others, Ticket, Uuid};

/// The exit status of a run whose time was up: "try again later" in sysexits.h.
pub const TIME_IS_UP: u8 = 75;
const POLL: Duration = Duration::from_millis(500);
/// NVML answers within milliseconds, unless a driver hangs. The first answer needs the driver's start.
const ANSWER: Duration = Duration::from_secs(2);
const FIRST_ANSWER: Duration = Duration::from_secs(30);
/// Between two lines about the same.
const REPEAT: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Wait until so much memory is free before the command starts: 40GiB of each visible device, or
    /// 0=40GiB,1=50%. Runs of one user start in the order of asking; what a run asked for counts as
    /// taken until it ends
    #[arg(long, value_name = "SPEC")]
    wait_for: Option<String>,
    /// For --wait-for: exit 75 after this time, 90s, 30m, 2h; nothing was run then
    /// [default: no limit]
    #[arg(long, value_name = "TIME", requires = "wait_for", value_parser = within)]
    wait_max: Option<Duration>,
}

pub enum Waited {
    /// `None`: there was nothing to wait for. The ticket is to be kept until the run ends.
    Start(Option<Ticket>),
    TimeIsUp,
}

fn wrong(why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("--wait-for: {why}"))
}

/// The option, checked before anything is done.
pub fn asked(args: &Args, simulated: bool) -> Result<Option<CapSpec>, Failure> {
    let Some(text) = &args.wait_for else { return Ok(None) };
    if simulated {
        return Err(wrong(
            "the devices of --simulate are of this run alone; leave one of the two out",
        ));
    }
    let wrong = |why| Failure::new(format!("--wait-for `{text}`: {why}"));
    capspec::parse(text).map(Some).map_err(wrong)
}

/// Bytes that are wanted of a device.
struct Wanted {
    device: FreeOn,
    bytes: u64,
}

pub fn wait(args: &Args, asked: Option<CapSpec>) -> Result<Waited, Failure> {
    let Some(spec) = asked else { return Ok(Waited::Start(None)) };
    let until = args.wait_max.and_then(|most| Instant::now().checked_add(most));
    let is_up = |until: Option<Instant>| until.is_some_and(|until| Instant::now() >= until);
    let budget = Budget::of_environment()?;
    let mut memory = FreeMemory::start();
    let mut answer = ask(&mut memory, FIRST_ANSWER)?;
    while answer.is_none() {
        if is_up(until) {
            return Ok(time_is_up(args, "the driver does not answer"));
        }
        message("--wait-for: the driver and NVML do not answer yet");
        answer = ask(&mut memory, FIRST_ANSWER)?;
    }
    let mut wanted = wanted(&spec, answer.unwrap_or_default(), &budget)?;
    let ticket = Ticket::take(wanted.iter().map(|it| (it.device.device.uuid, it.bytes)).collect());
    let ticket = ticket.map_err(wrong)?;
    let mut said: Option<(usize, Instant)> = None;
    loop {
        let left = budget.left();
        let room = |others: &Others| wanted.iter().all(|it| it.room(others, &left) >= it.bytes);
        let (starts, others) = ticket.try_start(room).map_err(wrong)?;
        if starts {
            if said.is_some() {
                message("--wait-for: there is enough memory: the command starts");
            }
            return Ok(Waited::Start(Some(ticket)));
        }
        let state = state(&wanted, &others, &left);
        if is_up(until) {
            return Ok(time_is_up(args, &state));
        }
        if said.is_none_or(|(before, at)| before != others.before || at.elapsed() >= REPEAT) {
            message(format_args!("--wait-for: waiting: {state}"));
            said = Some((others.before, Instant::now()));
        }
        std::thread::sleep(POLL);
        // Without an answer the last figures stay, of which there were too few.
        if let Some(now) = ask(&mut memory, ANSWER)? {
            for it in &mut wanted {
                let same = |on: &&FreeOn| on.device.uuid == it.device.device.uuid;
                it.device = now.iter().find(same).cloned().unwrap_or_default();
            }
        }
    }
}

fn ask(memory: &mut FreeMemory, within: Duration) -> Result<Option<Vec<FreeOn>>, Failure> {
    let no = |error| wrong(format_args!("it needs the driver and NVML: {error}"));
    memory.now(within).map_err(no)
}

fn time_is_up(args: &Args, state: &str) -> Waited {
    let most = args.wait_max.unwrap_or_default();
    message(format_args!(
        "--wait-for: not enough memory within {most:?}: {state}; nothing was run"
    ));
    Waited::TimeIsUp
}

fn wanted(spec: &CapSpec, devices: Vec<FreeOn>, budget: &Budget) -> Result<Vec<Wanted>, Failure> {
    let mut all = Vec::new();
    for device in devices {
        let of = &device.device;
        let Some(bytes) = spec.limit(of.ordinal, &of.uuid, of.total_bytes) else { continue };
        let gpu = gpu_name(device_id(of.ordinal));
        if bytes > of.total_bytes {
            let (bytes, total) = (gib(bytes), gib(of.total_bytes));
            return Err(wrong(format_args!("{bytes}: {gpu} has {total} in all")));
        }
        if device.free_bytes.is_none() {
            return Err(wrong(format_args!("NVML does not tell what is free on {gpu}")));
        }
        if let Some(limit) = budget.limit(of.ordinal, &of.uuid, of.total_bytes)
            && bytes > limit
        {
            let (bytes, limit, name) = (gib(bytes), gib(limit), &budget.name);
            return Err(wrong(format_args!(
                "{bytes}: the cap of group {name} is {limit} of {gpu}"
            )));
        }
        all.push(Wanted { device, bytes });
    }
    match all.is_empty() {
        true => Err(wrong("it names none of the visible devices")),
        false => Ok(all),
    }
}

fn device_id(ordinal: u32) -> vramtrace_format::DeviceId {
    vramtrace_format::DeviceId(u8::try_from(ordinal).unwrap_or(u8::MAX))
}

impl Wanted {
    /// What a new run may take: what is free and not claimed, and what the group has left.
    fn room(&self, others: &Others, left: &[(Uuid, u64)]) -> u64 {
        let uuid = &self.device.device.uuid;
        let claimed = others.claimed.get(uuid).copied().unwrap_or(0);
        let free = self.device.free_bytes.unwrap_or(0).saturating_sub(claimed);
        let of_group = left.iter().find(|(of, _)| of == uuid).map(|(_, bytes)| *bytes);
        free.min(of_group.unwrap_or(u64::MAX))
    }
}

/// `GPU 0 has 3.00 GiB of 4.00 GiB; 1 run asked before`.
fn state(wanted: &[Wanted], others: &Others, left: &[(Uuid, u64)]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for it in wanted {
        let room = it.room(others, left);
        if room < it.bytes {
            let gpu = gpu_name(device_id(it.device.device.ordinal));
            parts.push(format!("{gpu} has {} of {}", gib(room), gib(it.bytes)));
        }
    }
    if others.before > 0 {
        parts.push(format!("{} asked before", several(others.before as u64, "run")));
    }
    parts.join("; ")
}

/// The group that the command joins by VRAMTRACE_CAP_GROUP.
struct Budget {
    /// Empty: none.
    name: String,
    cap: Option<CapSpec>,
}

impl Budget {
    fn of_environment() -> Result<Budget, Failure> {
        let none = Budget { name: String::new(), cap: None };
        let given = std::env::var("VRAMTRACE_CAP_GROUP").unwrap_or_default();
        let Some((name, cap)) = given.split_once(':') else { return Ok(none) };
        let cap = capspec::parse(cap)
            .map_err(|why| Failure::new(format!("VRAMTRACE_CAP_GROUP `{given}`: {why}")))?;
        Ok(Budget { name: name.into(), cap: Some(cap) })
    }

    fn limit(&self, ordinal: u32, uuid: &Uuid, total: u64) -> Option<u64> {
        self.cap.as_ref()?.limit(ordinal, uuid, total)
    }

    /// What its members have left of each device that one of them uses.
    fn left(&self) -> Vec<(Uuid, u64)> {
        if self.name.is_empty() {
            return Vec::new();
        }
        // A group without members, or one that cannot be read, has all.
        let Ok(Some(group)) = Group::open(&self.name) else { return Vec::new() };
        let left = |(_, device): &(usize, vramtrace_format::group::GroupDevice)| {
            Some((device.uuid, device.limit?.saturating_sub(device.counted)))
        };
        group.devices.iter().filter_map(left).collect()
    }
}
