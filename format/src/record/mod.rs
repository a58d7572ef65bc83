//! Records: events, definitions, and their layout in words.
//!
//! [`event`] and [`definition`] hold the tables. All code that depends on the kind of a record is generated from them.

pub mod code;
pub mod define;
pub mod definition;
pub mod event;
pub(crate) mod event_codec;
mod record_macro;
pub(crate) mod sealed;
pub mod values;
pub(crate) mod wire;
pub mod word;
