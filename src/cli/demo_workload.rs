//! The program of `vramtrace demo`: a small imitation of a training run on the driver API.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::driver::{DevicePointer, Driver, Error};
use crate::error::{DONE, Failure, Outcome};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const LAYERS: u64 = 24;
const STEPS: u64 = 30;

pub fn run() -> Outcome {
    workload().map_err(|error| Failure { code: 1, message: format!("demo: {error}") })?;
    Ok(DONE)
}

fn workload() -> Result<(), Error> {
    let driver = Driver::open()?;
    driver.enter()?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let history = scope.spawn(|| keep_history(&driver, &ended));
        let done = train_and_evaluate(&driver);
        ended.store(true, Ordering::Release);
        let leaked = history.join().unwrap_or(0);
        let scattered = done?;
        println!("  {scattered} scattered blocks and {leaked} MiB of history were never freed");
        Ok(())
    })
}

/// The leak: a piece of history every now and then, from the beginning to the end. MiB of it. Reports name it, also
/// where the line tables are stripped: inlined, it would have no name there.
#[inline(never)]
fn keep_history(driver: &Driver, ended: &AtomicBool) -> u64 {
    let mut leaked = 0;
    if driver.enter().is_err() {
        return leaked;
    }
    while !ended.load(Ordering::Acquire) {
        // Where the cap is met there is none.
        leaked += driver.alloc(2 * MIB).map_or(0, |_| 2);
        pause(20);
    }
    leaked
}

/// How many scattered blocks it leaves.
#[inline(never)]
fn train_and_evaluate(driver: &Driver) -> Result<usize, Error> {
    phase("load", "24 layers of weights and their optimizer states");
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        // Wider in the middle, as such models are.
        let bytes = (24 + 8 * (layer % 4)) * MIB;
        weights.push(driver.alloc(bytes)?);
        weights.push(driver.alloc(bytes / 2)?);
        pause(4);
    }

    phase("train", "30 steps; activations come and go, a history of losses only grows");
    for step in 0..STEPS {
        train(driver, step)?;
    }

    phase("evaluate", "12,000 small blocks; then every block but one in 32 is freed");
    let blocks = scatter(driver)?;

    phase("big batch", "asks for more than the cap leaves, and takes a smaller batch instead");
    let batch = big_batch(driver)?;

    phase("end", "the weights go; the scattered blocks and the history stay");
    driver.free(batch)?;
    for pointer in weights {
        driver.free(pointer)?;
    }
    pause(50);
    Ok(blocks.len())
}

/// Forward keeps an activation per layer, backward frees them in reverse. They come from the
/// device's pool.
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

/// What stays keeps whole pages of the driver's busy.
fn scatter(driver: &Driver) -> Result<Vec<DevicePointer>, Error> {
    let mut kept = Vec::new();
    let mut blocks = Vec::new();
    for _ in 0..12_000 {
        blocks.push(driver.alloc(64 * KIB)?);
    }
    for (index, pointer) in blocks.into_iter().enumerate() {
        if index % 32 == 0 {
            kept.push(pointer);
        } else {
            driver.free(pointer)?;
        }
    }
    pause(100);
    Ok(kept)
}

/// Halves its request until it is granted, as a careful program does.
fn big_batch(driver: &Driver) -> Result<DevicePointer, Error> {
    let mut bytes = 4096 * MIB;
    loop {
        match driver.alloc(bytes) {
            Err(error) if error.is_out_of_memory() && bytes > 64 * MIB => {
                println!("  {} MiB refused", bytes / MIB);
                bytes /= 2;
                pause(30);
            }
            Ok(pointer) => {
                println!("  {} MiB granted", bytes / MIB);
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
