//! `frag --json`: schema `vramtrace.frag/1`.

use serde::Serialize;
use vramtrace_format::Header;

use crate::analysis::frag::{Frag, Pin};
use crate::analysis::{NamedStack, StackClassifier};

pub const SCHEMA: &str = "vramtrace.frag/1";

/// `vramtrace.frag/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragReport {
    pub schema: &'static str,
    pub devices: Vec<FragFacts>,
}

/// One device of one process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragFacts {
    #[serde(flatten)]
    frag: Frag,
    /// The lines of code whose blocks keep segments, the first 100: those that keep the most free memory first.
    holders: Vec<PinFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinFacts {
    #[serde(flatten)]
    pub pin: Pin,
    /// The library that called the driver.
    pub library: Option<String>,
    /// Of the stack with the most bytes. Innermost first.
    #[serde(flatten)]
    pub stack: NamedStack,
}

/// The most holders in the document: a trace may have thousands.
const FACTS: usize = 100;

/// The facts of one device.
pub fn facts(frag: Frag, header: &Header) -> FragFacts {
    let classifier = StackClassifier::new(&frag.symbols, header);
    let holders = frag.pins.iter().take(FACTS).map(|pin| pin_facts(&classifier, pin)).collect();
    FragFacts { holders, frag }
}

fn pin_facts(classifier: &StackClassifier, pin: &Pin) -> PinFacts {
    let roles = classifier.roles_of_block(pin.stack);
    PinFacts {
        pin: *pin,
        library: classifier.library_name(&roles).map(str::to_string),
        stack: classifier.named(pin.stack),
    }
}
