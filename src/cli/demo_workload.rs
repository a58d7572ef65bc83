//! The program that `vramtrace demo --run` records: a small imitation of a training run on the CUDA driver API.
//!
//! Its functions carry plain symbol names (`export_name`) and are not inlined, so that a report names
//! `demo_workload.rs:LINE train` and not a path of Rust modules. They stay private to this executable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::driver::{DevicePointer, Driver, Error};
use crate::error::{DONE, Failure, Outcome};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const LAYERS: u64 = 24;
const STEPS: u64 = 30;

/// Set when `keep_history` must stop.
static TRAINING_IS_OVER: AtomicBool = AtomicBool::new(false);

// SAFETY: no other symbol of this executable has these names (also below): the linker refuses a second one.
#[unsafe(export_name = "demo_main")]
#[inline(never)]
pub fn run() -> Outcome {
    workload().map_err(|error| Failure { code: 1, message: format!("demo: {error}") })?;
    Ok(DONE)
}

fn workload() -> Result<(), Error> {
    let driver = Driver::open()?;
    driver.enter()?;
    let history = thread::spawn(keep_history);
    let trained = train_and_evaluate(&driver);
    TRAINING_IS_OVER.store(true, Ordering::Release);
    let leaked = history.join().unwrap_or(0);
    println!(
        "           {} scattered blocks and {leaked} MiB of history were never freed",
        trained?
    );
    Ok(())
}

/// The leak: allocates 2 MiB every 20 ms and frees none. Returns the MiB that it allocated.
#[unsafe(export_name = "keep_history")]
#[inline(never)]
fn keep_history() -> u64 {
    let mut leaked = 0;
    let Ok(driver) = Driver::open() else { return leaked };
    if driver.enter().is_err() {
        return leaked;
    }
    while !TRAINING_IS_OVER.load(Ordering::Acquire) {
        // A request that the cap refuses leaks nothing.
        leaked += driver.alloc(2 * MIB).map_or(0, |_| 2);
        pause(20);
    }
    leaked
}

/// Returns the number of scattered blocks that stay allocated.
#[unsafe(export_name = "train_and_evaluate")]
#[inline(never)]
fn train_and_evaluate(driver: &Driver) -> Result<usize, Error> {
    phase("load", "24 layers of weights and their optimizer states");
    let weights = load_weights(driver)?;

    phase("train", "30 steps; activations come and go, a history of losses only grows");
    for step in 0..STEPS {
        train(driver, step)?;
    }

    phase("evaluate", "12,000 small blocks; then every block but one in 32 is freed");
    let blocks = evaluate(driver)?;

    let batch = big_batch(driver)?;

    phase("end", "the weights are freed; the scattered blocks and the history stay");
    driver.free(batch)?;
    for pointer in weights {
        driver.free(pointer)?;
    }
    pause(50);
    Ok(blocks.len())
}

#[unsafe(export_name = "load_weights")]
#[inline(never)]
fn load_weights(driver: &Driver) -> Result<Vec<DevicePointer>, Error> {
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        // Layers differ in width, as those of real models do.
        let bytes = (24 + 8 * (layer % 4)) * MIB;
        weights.push(driver.alloc(bytes)?);
        weights.push(driver.alloc(bytes / 2)?);
        pause(4);
    }
    Ok(weights)
}

/// One step: the forward pass allocates an activation per layer from the device's default pool, the
/// backward pass frees them in reverse order.
#[unsafe(export_name = "train")]
#[inline(never)]
fn train(driver: &Driver, step: u64) -> Result<(), Error> {
    let mut activations = Vec::new();
    for layer in 0..LAYERS {
        // Sequences of different lengths.
        let bytes = (8 + (step * 7 + layer * 3) % 24) * MIB;
        activations.push(driver.alloc_async(bytes)?);
    }
    pause(12);
    for pointer in activations.into_iter().rev() {
        driver.free_async(pointer)?;
    }
    driver.wait()?;
    pause(6);
    Ok(())
}

/// In a burst of calls the leak would have no time to grow, and would look as if it had ended.
fn rest(index: usize) {
    if index.is_multiple_of(300) {
        pause(8);
    }
}

/// Fragments memory: each block that stays keeps a whole page of the driver allocated. Returns the blocks that stay.
#[unsafe(export_name = "evaluate")]
#[inline(never)]
fn evaluate(driver: &Driver) -> Result<Vec<DevicePointer>, Error> {
    let mut kept = Vec::new();
    let mut blocks = Vec::new();
    for index in 0..12_000 {
        blocks.push(driver.alloc(64 * KIB)?);
        rest(index);
    }
    for (index, pointer) in blocks.into_iter().enumerate() {
        if index % 32 == 0 {
            kept.push(pointer);
        } else {
            driver.free(pointer)?;
        }
        rest(index);
    }
    pause(100);
    Ok(kept)
}

/// Halves its request until it is granted.
#[unsafe(export_name = "big_batch")]
#[inline(never)]
fn big_batch(driver: &Driver) -> Result<DevicePointer, Error> {
    let mut bytes = 4096 * MIB;
    let mut requests = String::new();
    loop {
        let request = format!("{} MiB", bytes / MIB);
        match driver.alloc(bytes) {
            Err(error) if error.is_out_of_memory() && bytes > 64 * MIB => {
                requests.push_str(&format!("{request} refused, "));
                bytes /= 2;
                pause(30);
            }
            Ok(pointer) => {
                phase("big batch", &format!("{requests}{request} granted"));
                pause(120);
                return Ok(pointer);
            }
            Err(error) => return Err(error),
        }
    }
}

fn phase(name: &str, what: &str) {
    println!("{name:<10} {what}");
}

fn pause(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds));
}
