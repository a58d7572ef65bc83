//! Finds or makes the page of a group, among the segments of shared memory that processes of this user have
//! attached: it lives as long as one of them, and has no file.

use crate::runtime::secure_dir::Wrong;
use crate::runtime::segment::Segment;
use std::time::Duration;
use vramtrace_format::group::{self, GROUP_WORDS, GroupPage};
use vramtrace_format::member::Member;

type Memory = Segment<GROUP_WORDS>;

/// How often, and how long each time, it is waited for a process that makes a page of this name: it makes a few system
/// calls, so one that takes 2 s is stopped.
const TRIES: u32 = 2_000;
const PAUSE: Duration = Duration::from_millis(1);

const STOPPED: &str = "another process, which may be stopped, makes the group; resume or end it";
const OTHER_NAMESPACE: &str = "it is a group of another container, whose processes are not visible here; use \
                               another name";
const OTHER_VERSION: &str = "it is a group of another version of this library, and its processes run; use another \
                             name, or start all processes of the group with one version";

/// Why a group cannot be joined where the system gives no System V shared memory.
pub fn no_shared_memory(wrong: Wrong) -> String {
    let errno = if let Wrong::Errno(errno) = wrong { errno } else { 0 };
    format!(
        "a group needs System V shared memory (shmget, shmat, shmctl): errno {errno}; raise \
         kernel.shmmni or kernel.shmall, or allow these calls (seccomp)"
    )
}

/// Attaches the group's page, and makes it if there is none. It is never detached. `Err`: why not, and what would be
/// right.
pub fn open(name: &str) -> Result<GroupPage<'static>, String> {
    let mut held: Option<Memory> = None;
    for _ in 0..TRIES {
        let found = find(name)?;
        match (held.take(), found.first) {
            (before, _) if found.is_being_made => {
                std::thread::sleep(PAUSE);
                held = before;
            }
            // Found after it was attached: a page with a lower turn cannot have been missed.
            (Some(memory), Some(first)) if first == memory.id => {
                return match GroupPage::look(memory.words) {
                    Some(page) if page.is_of_namespace(Member::namespace()) => Ok(page),
                    _ => {
                        memory.detach();
                        Err(OTHER_NAMESPACE.into())
                    }
                };
            }
            (None, None) => held = Some(make(name)?),
            (Some(_), None) => return Err(no_shared_memory(Wrong::Errno(0))),
            (before, Some(first)) => {
                before.into_iter().for_each(Memory::detach);
                held = Memory::attach(first).ok();
            }
        }
    }
    Err(STOPPED.into())
}

/// The pages of one name.
#[derive(Default)]
struct Found {
    /// The segment of the one that holds, if all have drawn their turns.
    first: Option<i32>,
    last_turn: u64,
    /// One has not.
    is_being_made: bool,
}

fn find(name: &str) -> Result<Found, String> {
    let (mut turns, mut wrong) = ((u64::MAX, i32::MAX), None);
    let mut found = Found::default();
    let listed = Memory::each_attached(|id| {
        let memory = match Memory::attach(id) {
            Ok(memory) => memory,
            Err(Wrong::Errno(errno)) if errno == libc::ENOMEM => {
                wrong = Some(no_shared_memory(Wrong::Errno(errno)));
                return;
            }
            // It was removed meanwhile.
            Err(_) => return,
        };
        if let Some(page) = GroupPage::look(memory.words).filter(|page| page.name() == name) {
            let turn = page.turn();
            found.is_being_made |= turn == 0;
            found.last_turn = found.last_turn.max(turn);
            turns = turns.min((turn, id));
            found.first = Some(turns.1);
        } else if group::is_of_other_version(memory.words, name) {
            wrong = Some(OTHER_VERSION.into());
        }
        memory.detach();
    });
    listed.map_err(no_shared_memory)?;
    wrong.map_or(Ok(found), Err)
}

fn make(name: &str) -> Result<Memory, String> {
    let memory = Memory::create().map_err(no_shared_memory)?;
    let page = GroupPage::make(memory.words, name, Member::namespace());
    page.draw_turn(find(name)?.last_turn);
    Ok(memory)
}
