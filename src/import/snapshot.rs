//! torch.cuda.memory._snapshot(): the requests are in `device_traces`, one list a device.

use super::Imported;
use super::csv::index_of;
use super::pickle::{self, Value};
use crate::allocator::Log;

pub(super) fn read(bytes: &[u8]) -> Result<Imported, String> {
    let value = pickle::parse(bytes).map_err(|e| e.to_string())?;
    let answer = requests(&value);
    pickle::take_apart([value]);
    answer
}

fn requests(value: &Value) -> Result<Imported, String> {
    let traces = value
        .get("device_traces")
        .and_then(|traces| traces.items())
        .ok_or("has no device_traces: it is no PyTorch memory snapshot, or one without history (call torch.cuda.memory._record_memory_history first)")?;
    let mut imported = Imported {
        conf: value
            .get("allocator_settings")
            .and_then(|settings| settings.get("PYTORCH_CUDA_ALLOC_CONF"))
            .and_then(|conf| conf.text())
            .map(|conf| conf.to_string()),
        ..Imported::default()
    };
    let mut before = 0;
    for (ordinal, trace) in traces.iter().enumerate() {
        let entries =
            trace.items().ok_or_else(|| format!("device_traces[{ordinal}] is no list"))?;
        let log = device(&entries, &mut before)
            .map_err(|what| format!("device_traces[{ordinal}]{what}"))?;
        if !log.is_empty() {
            imported.devices.push((ordinal as u32, log));
        }
    }
    if imported.devices.is_empty() {
        return Err("its device_traces hold no allocation: history was not recorded (torch.cuda.memory._record_memory_history)".into());
    }
    if before > 0 {
        imported.caveats.push(format!(
            "{before} blocks were allocated before the history begins: they are not in the prediction"
        ));
    }
    Ok(imported)
}

fn device(entries: &[Value], before: &mut u64) -> Result<Log, String> {
    let mut log = Log::default();
    let mut streams = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let wrong = |what: &str| format!("[{index}]: {what}");
        let action = entry.get("action").and_then(|a| a.text()).ok_or(wrong("has no action"))?;
        let field = |name: &str| {
            entry.get(name).and_then(|v| v.int()).ok_or_else(|| wrong(&format!("has no {name}")))
        };
        match &*action {
            "alloc" => {
                let size =
                    u64::try_from(field("size")?).map_err(|_| wrong("has a negative size"))?;
                let stream = index_of(&mut streams, field("stream").unwrap_or(0) as u64);
                log.alloc(field("addr")? as u64, size, stream, pool(entry));
            }
            "free_completed" => {
                *before += u64::from(!log.free(field("addr")? as u64));
            }
            _ => {}
        }
    }
    Ok(log)
}

/// Torch 2.12 and later say the pool, as a pair; both zero is the default pool.
fn pool(entry: &Value) -> u16 {
    let pair = entry.get("pool_id").and_then(|p| p.items()).unwrap_or_default();
    let number = |at: usize| pair.get(at).and_then(Value::int).unwrap_or(0);
    // Two small counters, folded: one of them is always zero.
    (number(0) * 2 + number(1) * 2 + i64::from(number(1) != 0)) as u16
}
