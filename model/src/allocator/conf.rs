//! Parses the setting string of PYTORCH_CUDA_ALLOC_CONF: `max_split_size_mb:128,expandable_segments:True`.

const MIB: u64 = 1 << 20;

/// The settings that change where blocks are placed. Sizes are bytes. Other keys (threads, pinned memory,
/// locks) are accepted and have no field.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    pub expandable_segments: bool,
    /// Blocks of this size or more are not split; `u64::MAX` = no limit.
    pub max_split_size: u64,
    /// An unsplittable block may be larger than the request by at most this.
    pub max_non_split_rounding: u64,
    pub garbage_collection_threshold: f64,
    pub large_segment_size: u64,
    /// Divisions of each power of two, from below 2 MiB (entry 0) to 32 GiB and more (entry 15).
    pub roundup_power2_divisions: [u32; 16],
    /// The part of the card's memory that torch may reserve, above 0 and up to 1.
    pub per_process_memory_fraction: Option<f64>,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            expandable_segments: false,
            max_split_size: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            garbage_collection_threshold: 0.0,
            large_segment_size: 20 * MIB,
            roundup_power2_divisions: [0; 16],
            per_process_memory_fraction: None,
        }
    }
}

/// Why a setting string is invalid. The message names the key, the value and the valid values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ConfError(String);

/// Keys that are accepted and change no placement.
const NO_PLACEMENT: [&str; 11] = [
    "pinned_use_background_threads",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "graph_capture_record_stream_reuse",
    "pinned_reserve_segment_size_mb",
    "throw_on_cudamalloc_oom",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
];

impl Conf {
    /// Parses a setting string. `""` and `default` give torch's defaults.
    pub fn parse(text: &str) -> Result<Conf, ConfError> {
        let mut conf = Conf::default();
        let text = text.trim();
        if text.is_empty() || text == "default" {
            return Ok(conf);
        }
        let mut rounding_given = false;
        for part in split_outside_brackets(text) {
            let (key, value) =
                part.split_once(':').map(|(k, v)| (k.trim(), v.trim())).ok_or_else(|| {
                    ConfError(format!("\"{part}\" is not KEY:VALUE, as in max_split_size_mb:128"))
                })?;
            match key {
                "expandable_segments" => conf.expandable_segments = boolean(key, value)?,
                "large_segment_size_mb" => {
                    conf.large_segment_size = megabytes(key, value, 10, "more than 10")?;
                    if !rounding_given {
                        conf.max_non_split_rounding = conf.large_segment_size;
                    }
                }
                "max_split_size_mb" => {
                    conf.max_split_size = megabytes(key, value, 19, "20 or more")?
                }
                "max_non_split_rounding_mb" => {
                    conf.max_non_split_rounding = megabytes(key, value, 19, "20 or more")?;
                    rounding_given = true;
                }
                "garbage_collection_threshold" => {
                    conf.garbage_collection_threshold = fraction(key, value)?;
                }
                "per_process_memory_fraction" => {
                    conf.per_process_memory_fraction = Some(fraction(key, value)?);
                }
                "roundup_power2_divisions" => conf.roundup_power2_divisions = divisions(value)?,
                "backend" if value == "native" => {}
                "backend" => {
                    return Err(ConfError(format!("backend:{value} has no cache of PyTorch's")));
                }
                _ if NO_PLACEMENT.contains(&key) => {}
                _ => {
                    return Err(ConfError(format!(
                        "\"{key}\" is not a setting of PyTorch's allocator that changes where memory goes; known are expandable_segments, max_split_size_mb, max_non_split_rounding_mb, roundup_power2_divisions, garbage_collection_threshold, large_segment_size_mb, per_process_memory_fraction"
                    )));
                }
            }
        }
        if conf.max_split_size < conf.large_segment_size {
            return Err(ConfError(format!(
                "max_split_size_mb:{} is less than the large segment size, {} MiB: torch refuses that",
                conf.max_split_size / MIB,
                conf.large_segment_size / MIB
            )));
        }
        Ok(conf)
    }
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts
}

fn boolean(key: &str, value: &str) -> Result<bool, ConfError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(ConfError(format!("{key}:{value}: give True or False, with a capital letter"))),
    }
}

fn megabytes(key: &str, value: &str, above: u64, right: &str) -> Result<u64, ConfError> {
    value
        .parse::<u64>()
        .ok()
        .filter(|&mb| mb > above && mb < 1 << 40)
        .map(|mb| mb * MIB)
        .ok_or_else(|| ConfError(format!("{key}:{value}: give a whole number of MiB, {right}")))
}

fn fraction(key: &str, value: &str) -> Result<f64, ConfError> {
    value
        .parse::<f64>()
        .ok()
        .filter(|f| *f > 0.0 && *f <= 1.0)
        .ok_or_else(|| ConfError(format!("{key}:{value}: give a number above 0 and up to 1")))
}

/// `4`, or `[256:1,512:2,>:8]` by MiB boundaries that are powers of two.
fn divisions(value: &str) -> Result<[u32; 16], ConfError> {
    let wrong = || {
        ConfError(format!(
            "roundup_power2_divisions:{value}: a power of two as in 4, or a list as in [256:1,512:2,>:8]"
        ))
    };
    let number = |text: &str| {
        text.trim().parse::<u32>().ok().filter(|n| *n == 0 || n.is_power_of_two()).ok_or_else(wrong)
    };
    let Some(list) = value.strip_prefix('[') else {
        return Ok([number(value)?; 16]);
    };
    let list = list.strip_suffix(']').ok_or_else(wrong)?;
    let mut table = [0; 16];
    let mut next = 0;
    for (nth, part) in list.split(',').enumerate() {
        let (boundary, count) = part.split_once(':').ok_or_else(wrong)?;
        let count = number(count)?;
        if boundary.trim() == ">" {
            table[next.min(15)..].fill(count);
            break;
        }
        let mb = boundary
            .trim()
            .parse::<u64>()
            .ok()
            .filter(|b| b.is_power_of_two())
            .ok_or_else(wrong)?;
        let index = (mb.ilog2() as usize).min(15);
        if nth == 0 {
            table[..index].fill(count);
        }
        table[index] = count;
        next = index + 1;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_several_keys() {
        assert_eq!(Conf::parse("").unwrap(), Conf::default());
        assert_eq!(Conf::parse("default").unwrap(), Conf::default());
        let conf = Conf::parse("max_split_size_mb:128, roundup_power2_divisions:4").unwrap();
        assert_eq!(conf.max_split_size, 128 * MIB);
        assert_eq!(conf.roundup_power2_divisions, [4; 16]);
        assert!(Conf::parse("expandable_segments:True").unwrap().expandable_segments);
    }

    #[test]
    fn a_list_of_divisions() {
        let conf = Conf::parse("roundup_power2_divisions:[256:1,512:2,>:8]").unwrap();
        let expected = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 8, 8];
        assert_eq!(conf.roundup_power2_divisions, expected);
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (text, part) in [
            ("expandable_segments:true", "True or False"),
            ("max_split_size_mb:10", "20 or more"),
            ("max_split_size_mb", "KEY:VALUE"),
            ("garbage_collection_threshold:1.5", "above 0"),
            ("roundup_power2_divisions:3", "power of two"),
            ("backend:cudaMallocAsync", "no cache of PyTorch's"),
            ("max_split:10", "known are"),
            ("large_segment_size_mb:64,max_split_size_mb:32", "less than the large segment"),
        ] {
            let error = Conf::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
