//! What the table of events is made into.

/// From rows of `code Name { field: type = place, .. } => opens_file: .., is_total: ..;` the
/// [`Event`](super::event::Event), and whatever differs by its kind. The places are those of
/// [`super::wire`]. A row without braces has no fields; one in round brackets has those of a
/// structure.
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
            /// Code and name of each kind. The codes are those of the long forms.
            pub const KINDS: &[(u8, &str)] = &[$( ($code, stringify!($name)), )*];

            pub fn code(&self) -> u8 {
                match self {
                    $( Event::$name { .. } => $code, )*
                }
            }

            /// Is a process worth a trace file once this has happened? What comes before is kept,
            /// and written when the file opens. No for what also happens to a process that takes
            /// no GPU memory.
            pub fn opens_file(&self) -> bool {
                match self {
                    $( Event::$name { .. } => $opens, )*
                }
            }

            /// Is it still written where single events are not, since the file is full and no
            /// room can be made?
            pub fn is_total(&self) -> bool {
                match self {
                    $( Event::$name { .. } => $total, )*
                }
            }

            /// In the long form.
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

            /// From the long form.
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

            /// An event of this kind whose fields are made of these numbers: for tests and fuzzers.
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
