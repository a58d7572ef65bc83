//! Events to records, and back. Nothing here allocates: the shim runs it in hooks.
//!
//! Nearly all of it comes from the table in [`super::event`]; here are the short forms, which an
//! allocation and its free take wherever they can, and the anchor's time.

use super::code;
use super::event::Event;
use super::sealed::Record;
use super::values::Alloc;
use super::wire::{EVENT_WORDS, Get};
use crate::ids::{SiteId, StackId};
use crate::kind::Space;

/// Addresses that the short forms can hold: 512-byte aligned and below 2^49; and which forms.
#[inline(always)]
fn short_address(space: Space, key: u64) -> Option<(u64, [u8; 2])> {
    let codes = match space {
        Space::Device => [code::ALLOC_SHORT, code::FREE_SHORT],
        Space::Block => [code::BLOCK_ALLOC_SHORT, code::BLOCK_FREE_SHORT],
        _ => return None,
    };
    (key & 511 == 0 && key >> 49 == 0).then_some((key >> 9, codes))
}

/// The 32-byte form of an allocation, where it fits.
#[inline(always)]
pub fn short_alloc(alloc: &Alloc) -> Option<Record<4>> {
    let (address, [code, _]) = short_address(alloc.space, alloc.key)?;
    Some(Record::new(code, address).with(alloc.size).with(pair(alloc.site, alloc.stack)))
}

/// The 16-byte form of a free, where it fits.
#[inline(always)]
pub fn short_free(key: u64, space: Space, site: SiteId) -> Option<Record<2>> {
    let (address, [_, code]) = short_address(space, key)?;
    (site.0 == 0).then(|| Record::new(code, address))
}

#[inline(always)]
fn pair(site: SiteId, stack: StackId) -> u64 {
    u64::from(site.0) << 32 | u64::from(stack.0)
}

/// Any event. `time_ns` is the event's own time (an [`Event::Anchor`] carries it in full).
pub fn encode(event: &Event, time_ns: u64) -> Record<EVENT_WORDS> {
    let short = match event {
        Event::Alloc(alloc) => short_alloc(alloc).map(Record::widen),
        Event::Free { key, space, site } => short_free(*key, *space, *site).map(Record::widen),
        Event::Anchor => Some(event.put().with(time_ns)),
        _ => None,
    };
    short.unwrap_or_else(|| event.put())
}

/// An event from its kind, the small field of word 1 and the words after it. `None`: no event, or
/// one of a newer writer. Words beyond those known here are ignored: newer minors may add some.
/// Whatever the bytes are, it does not panic.
#[inline]
pub fn decode(kind: u8, small: u64, body: &[u64]) -> Option<Event> {
    let alloc = |space, size, which: u64| {
        let (site, stack) = (SiteId((which >> 32) as u32), StackId(which as u32));
        Some(Event::Alloc(Alloc { key: small << 9, space, size, site, stack }))
    };
    let free = |space| Some(Event::Free { key: small << 9, space, site: SiteId(0) });
    match (kind, body) {
        (code::ALLOC_SHORT, &[size, which, ..]) => alloc(Space::Device, size, which),
        (code::FREE_SHORT, _) => free(Space::Device),
        (code::BLOCK_ALLOC_SHORT, &[size, which, ..]) => alloc(Space::Block, size, which),
        (code::BLOCK_FREE_SHORT, _) => free(Space::Block),
        (code::ANCHOR, []) => None,
        _ => Event::get(kind, &mut Get::new(small, body)),
    }
}
