//! How facts are written as JSON: the results of an analysis serialize themselves, with these rules for values of the format.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Serialize, Serializer};
use vramtrace_format::{DeviceId, DriverCause, Header, SwitchedBy};

// How a field is written, and the type of that: for `#[serde(with = "...")]`. A schema has the words of the field.

// The ordinal of a device as the process saw it; null where the device is not known.
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema), schemars(inline))]
pub struct Ordinal(pub Option<u8>);

impl Ordinal {
    pub fn serialize<S: Serializer>(device: &DeviceId, to: S) -> Result<S::Ok, S::Error> {
        (*device != DeviceId::UNKNOWN).then_some(device.0).serialize(to)
    }
}

// ns as seconds.
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema), schemars(inline))]
pub struct Seconds(pub f64);

impl Seconds {
    pub fn serialize<S: Serializer>(ns: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(*ns as f64 / 1e9)
    }
}

#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema), schemars(inline))]
pub struct SecondsOrNull(pub Option<f64>);

impl SecondsOrNull {
    pub fn serialize<S: Serializer>(ns: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        ns.map(|ns| ns as f64 / 1e9).serialize(to)
    }
}

/// The number of a device, also of one that is not known.
pub fn number<S: Serializer>(device: &DeviceId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u8(device.0)
}

/// For keys that are absent where they are 0.
pub fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct ProcessId {
    pub pid: u32,
    pub rank: Option<u32>,
}

impl ProcessId {
    pub fn of(header: &Header) -> ProcessId {
        ProcessId { pid: header.pid, rank: header.rank }
    }
}

/// A header, of which a document has the process.
pub fn process<H: Borrow<Header>, S: Serializer>(header: &H, to: S) -> Result<S::Ok, S::Error> {
    ProcessId::of(header.borrow()).serialize(to)
}

/// What the driver took memory for; null or absent where it was allocated.
pub fn cause<S: Serializer>(cause: &Option<DriverCause>, to: S) -> Result<S::Ok, S::Error> {
    cause.map(DriverCause::name).serialize(to)
}

/// A path, as text.
pub fn path<P: AsRef<Path>, S: Serializer>(path: &P, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.as_ref().display())
}

/// Three places.
pub fn thousandths<S: Serializer>(part: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((part * 1000.0).round() / 1000.0)
}

/// A part from 0 to 1, to four digits.
pub fn part(of: u64, whole: u64) -> f64 {
    (of as f64 / whole.max(1) as f64 * 10_000.0).round() / 10_000.0
}

/// Millionths as a share.
pub fn share<S: Serializer>(millionths: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(f64::from(*millionths) / 1e6)
}

/// What switches the recording off.
pub fn name_of_switch(by: SwitchedBy) -> &'static str {
    match by {
        SwitchedBy::Order => "record",
        SwitchedBy::HostFile => "host_file",
        SwitchedBy::End => "unwritable",
    }
}

pub fn switched_by<S: Serializer>(by: &SwitchedBy, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name_of_switch(*by))
}

/// The facts of a device, in a list of devices.
#[derive(Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema), schemars(rename = "{F}OfDevice"))]
pub struct OfDevice<F> {
    #[serde(with = "Ordinal")]
    device: DeviceId,
    #[serde(flatten)]
    facts: F,
}

pub fn devices<F: Serialize, S: Serializer>(
    all: &BTreeMap<DeviceId, F>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|(device, facts)| OfDevice { device: *device, facts }))
}
