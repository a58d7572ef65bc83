//! Encodes events as records, and decodes them. Nothing here allocates: the recorder calls it in hooks.
//!
//! Most of the code is generated from the table in [`super::event`]. This file adds the short forms of an allocation
//! and a free, which are used where the values fit, and the time of an anchor.

use super::code;
use super::event::Event;
use super::sealed::Record;
use super::values::Alloc;
use super::wire::{EVENT_WORDS, Get};
use super::word::SMALL_MASK;
use crate::ids::{SiteId, StackId};
use crate::kind::Space;

/// The address field and the codes of the short forms (allocation, free). `None`: the address is not a multiple of 512
/// below 2^49, or the space has no short forms.
#[inline(always)]
fn short_address(space: Space, key: u64) -> Option<(u64, [u8; 2])> {
    let codes = match space {
        Space::Device => [code::ALLOC_SHORT, code::FREE_SHORT],
        Space::Block => [code::BLOCK_ALLOC_SHORT, code::BLOCK_FREE_SHORT],
        _ => return None,
    };
    // Bits of it that must be 0 are above the field.
    let address = key.rotate_right(9);
    (address <= SMALL_MASK).then_some((address, codes))
}

/// The 32-byte form of an allocation, without its request. `None`: it does not fit.
#[inline(always)]
pub(crate) fn short_alloc(alloc: &Alloc) -> Option<Record<4>> {
    let (address, [code, _]) = short_address(alloc.space, alloc.key)?;
    Some(Record::new(code, address).with(alloc.size).with(pair(alloc.site, alloc.stack)))
}

/// The 40-byte form of a block that has a request of another size. `None`: it does not fit, or is no block.
#[inline(always)]
pub(crate) fn short_requested(alloc: &Alloc, requested: u64) -> Option<Record<5>> {
    let (address, [code, _]) = short_address(alloc.space, alloc.key)?;
    let record = || Record::new(code, address).with(alloc.size);
    (alloc.space == Space::Block)
        .then(|| record().with(pair(alloc.site, alloc.stack)).with(requested))
}

/// The 16-byte form of a free. `None`: it does not fit, or `site` is not 0.
#[inline(always)]
pub(crate) fn short_free(key: u64, space: Space, site: SiteId) -> Option<Record<2>> {
    let (address, [_, code]) = short_address(space, key)?;
    (site.0 == 0).then(|| Record::new(code, address))
}

#[inline(always)]
fn pair(site: SiteId, stack: StackId) -> u64 {
    u64::from(site.0) << 32 | u64::from(stack.0)
}

/// Encodes any event. `time_ns`: its time since start, which an [`Event::Anchor`] stores in full.
pub(crate) fn encode(event: &Event, time_ns: u64) -> Record<EVENT_WORDS> {
    let short = match event {
        Event::Alloc(alloc) => match alloc.requested {
            None => short_alloc(alloc).map(Record::widen),
            Some(requested) => short_requested(alloc, requested).map(Record::widen),
        },
        Event::Free { key, space, site } => short_free(*key, *space, *site).map(Record::widen),
        Event::Anchor => Some(event.put().record.with(time_ns)),
        _ => None,
    };
    short.unwrap_or_else(|| event.put().record)
}

/// Decodes an event from its code, the small field of word 1 and the words after it, as bytes. `None`: not an event, or one
/// of a newer writer. Additional words are ignored: newer minor versions may add some. Words may have any values; nothing
/// panics.
///
/// `found` stores the event where it is wanted. An event that is returned is copied in larger pieces than it was just
/// stored in, for which a processor waits.
#[inline(always)]
pub(crate) fn decode<R>(
    kind: u8,
    small: u64,
    body: &[u8],
    found: impl FnOnce(Event) -> R,
) -> Option<R> {
    let word = |at: usize| Some(u64::from_le_bytes(*body.get(8 * at..)?.first_chunk()?));
    let (space, is_alloc) = match kind {
        code::ALLOC_SHORT => (Space::Device, true),
        code::FREE_SHORT => (Space::Device, false),
        code::BLOCK_ALLOC_SHORT => (Space::Block, true),
        code::BLOCK_FREE_SHORT => (Space::Block, false),
        code::ANCHOR if body.is_empty() => return None,
        _ => {
            let mut words = [0; EVENT_WORDS];
            let len = words.len().min(body.len() / 8);
            for (word, bytes) in words.iter_mut().zip(body.chunks_exact(8)) {
                *word = bytes.try_into().map_or(0, u64::from_le_bytes);
            }
            return Event::get(kind, &mut Get::new(small, &words[..len])).map(found);
        }
    };
    let key = small << 9;
    if !is_alloc {
        return Some(found(Event::Free { key, space, site: SiteId(0) }));
    }
    let (size, which) = (word(0)?, word(1)?);
    let (site, stack) = (SiteId((which >> 32) as u32), StackId(which as u32));
    let requested = if space == Space::Block { word(2) } else { None };
    Some(found(Event::Alloc(Alloc { key, space, size, site, stack, requested })))
}
