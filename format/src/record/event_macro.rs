//! The macro that expands the table of events.

/// Generates [`Event`](super::event::Event), its encoder and its decoder from rows of the form
/// `code Name { field: type = place, .. } => opens_file: .., is_total: ..;`. The places are those of [`super::wire`]. A
/// row without braces has no fields; a row with parentheses has the fields of a structure.
macro_rules! events {
    ($(
        $(#[$meta:meta])*
        $code:literal $name:ident
        $({ $( $(#[$field_meta:meta])* $field:ident: $type:ty = $place:ident, )* })?
        $(($value:ident: $inner:ty))?
        => opens_file: $opens:literal, is_total: $total:literal;
    )*) => {
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Event {
            $( $(#[$meta])* $name $({ $( $(#[$field_meta])* $field: $type, )* })? $(($inner))?, )*
        }

        impl Event {
            /// Code and name of each kind of event. The codes are those of the long forms.
            pub const KINDS: &[(u8, &str)] = &[$( ($code, stringify!($name)), )*];

            /// The code of the long form.
            pub fn code(&self) -> u8 {
                match self {
                    $( Event::$name { .. } => $code, )*
                }
            }

            /// Whether this event creates the trace file. Earlier events are buffered, and written when the
            /// file is created. False for events of processes that allocate no GPU memory.
            pub fn opens_file(&self) -> bool {
                match self {
                    $( Event::$name { .. } => $opens, )*
                }
            }

            /// Whether the event is still written when the file is full and nothing can be erased: totals and
            /// checkpoints are, single events are not.
            pub fn is_total(&self) -> bool {
                match self {
                    $( Event::$name { .. } => $total, )*
                }
            }

            /// Encodes the event in the long form.
            pub(super) fn put(&self) -> $crate::record::sealed::Record<EVENT_WORDS> {
                match self {
                    $( Event::$name $({ $($field),* })? $(($value))? => {
                        #[allow(unused_mut)]
                        let mut to = Put::new($code);
                        $( $( to.$place($field); )* )?
                        $( to.inner::<$inner>($value); )?
                        to.finish()
                    } )*
                }
            }

            /// Decodes the long form.
            #[allow(unused_variables)]
            pub(super) fn get(code: u8, from: &mut Get) -> Option<Event> {
                match code {
                    $( $code => {
                        $( $( let $field = from.$place()?; )* )?
                        $( let $value = from.inner::<$inner>()?; )?
                        Some(Event::$name $({ $($field),* })? $(($value))?)
                    } )*
                    _ => None,
                }
            }

            /// An event of this kind with fields derived from these numbers, for tests and fuzzers.
            #[allow(unused_variables)]
            pub fn any(code: u8, numbers: impl Iterator<Item = u64>) -> Option<Event> {
                let mut numbers = AnyFields(numbers);
                match code {
                    $( $code => {
                        $( $( let $field = numbers.$place(); )* )?
                        $( let $value = numbers.inner::<$inner>(); )?
                        Some(Event::$name $({ $($field),* })? $(($value))?)
                    } )*
                    _ => None,
                }
            }
        }
    };
}

pub(super) use events;
