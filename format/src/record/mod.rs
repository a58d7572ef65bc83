//! Records: events, definitions, and their layout in words.
//!
//! [`event`] holds the table of events. All code that depends on the kind of an event is generated from it.

pub mod code;
pub mod define;
pub mod definition;
pub(crate) mod definition_decode;
pub mod event;
pub(crate) mod event_codec;
mod event_macro;
mod scalar;
pub(crate) mod sealed;
pub mod values;
mod wire;
pub mod word;
