//! Refusals that a library did not report to its caller. NVSHMEM, NCCL and others continue, and a later call
//! fails with another error. The recorder writes the next call that fails.

use serde::{Serialize, Serializer};
use vramtrace_format::oom::{Figures, OomCause, OtherLimit};
use vramtrace_format::{DeviceId, Refused};

use super::LimitFacts;
use crate::analysis::StackClassifier;
use crate::facts::{self, ProcessId};
use crate::replay::RefusalAt;
use crate::trace::Definitions;

/// A refusal, and the next call that failed with another error than out of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swallowed {
    pub refusal: RefusalAt,
    pub next_ns: u64,
    pub next_api: u16,
    pub next_result: i32,
    /// The exit status of the process; `None`: not known.
    pub status: Option<i32>,
}

/// A request that a library did not report as refused, with names.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct NotReported {
    #[serde(flatten)]
    pub process: ProcessId,
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    pub library: String,
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub time_ns: u64,
    pub size_bytes: u64,
    pub api: String,
    #[serde(flatten)]
    pub limit: LimitFacts,
    /// As in `post_mortem`.
    #[serde(serialize_with = "cause_name")]
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub cause: OomCause,
    /// The call that failed next.
    pub next_api: String,
    pub next_result: i32,
    #[serde(rename = "next_at_s", with = "facts::Seconds")]
    pub next_ns: u64,
    /// Null: not known.
    pub exit_status: Option<i32>,
    #[serde(skip)]
    pub refused: Refused,
}

fn cause_name<S: Serializer>(cause: &OomCause, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(cause.name())
}

impl Swallowed {
    /// `None`: the program itself or PyTorch was refused, which report it; or that is not known.
    pub fn named(
        &self,
        classifier: &StackClassifier,
        definitions: &Definitions,
    ) -> Option<NotReported> {
        let Swallowed { refusal, next_ns, next_api, next_result, status } = *self;
        let refused = refusal.refused;
        let key_frames = classifier.key_frames(refused.stack);
        let library = classifier.library_name(&key_frames);
        let library = library.filter(|_| classifier.is_other_library(&key_frames))?.to_string();
        let other = OtherLimit::of(|name| definitions.setting(name));
        let cause = Figures::of_refused(&refused, other).cause();
        Some(NotReported {
            process: classifier.process,
            device: refusal.device,
            library,
            time_ns: refusal.time_ns,
            size_bytes: refused.size,
            api: definitions.site_api_name(refused.site),
            limit: LimitFacts::of(&refused),
            cause,
            next_api: definitions.api_name(next_api),
            next_result,
            next_ns,
            exit_status: status,
            refused,
        })
    }
}
