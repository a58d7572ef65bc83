//! What is free on the devices that a CUDA program of this environment sees.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use vramtrace_format::uuid;

use super::calls::Calls;
use crate::driver::{Driver, Error, GpuDevice};

/// A device and its free bytes by NVML. `None`: NVML does not say.
#[derive(Clone, Debug, Default)]
pub struct FreeOn {
    pub device: GpuDevice,
    pub free_bytes: Option<u64>,
}

/// Asks on a thread of its own: calls of the driver and of NVML may never return.
pub struct FreeMemory {
    ask: Sender<()>,
    answers: Receiver<Result<Vec<FreeOn>, Error>>,
    /// The last question has no answer yet.
    open: bool,
}

impl FreeMemory {
    pub fn start() -> FreeMemory {
        let (ask, asked) = channel::<()>();
        let (answer, answers) = channel();
        std::thread::spawn(move || {
            let mut known: Option<(Vec<GpuDevice>, Calls)> = None;
            for () in asked {
                let found = match &known {
                    Some(known) => Ok(read(known)),
                    None => open().map(|opened| read(known.insert(opened))),
                };
                if answer.send(found).is_err() {
                    return;
                }
            }
            if let Some((_, calls)) = known {
                calls.shut_down();
            }
        });
        FreeMemory { ask, answers, open: false }
    }

    /// All devices now. `Ok(None)`: no answer in this time; the next call goes on waiting for it.
    pub fn now(&mut self, within: Duration) -> Result<Option<Vec<FreeOn>>, Error> {
        if !self.open {
            // The thread lives as long as its ends of the channels.
            let _ = self.ask.send(());
            self.open = true;
        }
        match self.answers.recv_timeout(within) {
            Ok(found) => {
                self.open = false;
                found.map(Some)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }
}

/// The driver tells which devices are visible, and their order; it makes no context for that.
fn open() -> Result<(Vec<GpuDevice>, Calls), Error> {
    let calls = Calls::open()?;
    Ok((Driver::open()?.devices()?, calls))
}

fn read((devices, calls): &(Vec<GpuDevice>, Calls)) -> Vec<FreeOn> {
    let free = |device: &GpuDevice| {
        let names = [false, true].map(|mig| uuid::text(&device.uuid, mig));
        let handle = names.iter().find_map(|name| calls.handle_of(name))?;
        calls.memory(handle).map(|memory| memory.free)
    };
    let all = devices.iter();
    all.map(|device| FreeOn { device: device.clone(), free_bytes: free(device) }).collect()
}
