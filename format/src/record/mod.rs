//! Records: what happened and what the ids in it stand for, and how both are laid out in words.
//!
//! [`event`] is the table of events; everything that depends on an event's kind comes from it.

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

pub(crate) use wire::EVENT_WORDS;
