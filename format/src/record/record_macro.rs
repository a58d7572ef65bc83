//! The macros that expand the tables of events and of definitions.

/// Generates an enumeration of records, its encoder and its decoder, from rows of the form
/// `code Name { field: type = place, .. };`. The places are those of [`super::wire`]. A row without braces has no fields; a
/// row with parentheses has the fields of a structure.
macro_rules! records {
    (
        $(#[$enum_meta:meta])*
        pub enum $enum:ident {
            $(
                $(#[$meta:meta])*
                $code:literal $name:ident
                $({ $( $(#[$field_meta:meta])* $field:ident: $type:ty = $place:ident, )* })?
                $(($value:ident: $inner:ty))?;
            )*
        }
    ) => {
        $(#[$enum_meta])*
        pub enum $enum {
            $( $(#[$meta])* $name $({ $( $(#[$field_meta])* $field: $type, )* })? $(($inner))?, )*
        }

        impl $enum {
            /// Code and name of each kind. The codes are those of the long forms.
            pub const KINDS: &[(u8, &str)] = &[$( ($code, stringify!($name)), )*];

            /// Encodes the long form.
            pub(super) fn put(&self) -> $crate::record::wire::Put<'_> {
                match self {
                    $( $enum::$name $({ $($field),* })? $(($value))? => {
                        #[allow(unused_mut)]
                        let mut to = $crate::record::wire::Put::new($code);
                        $( $( to.$place($field); )* )?
                        $( to.inner::<$inner>($value); )?
                        to
                    } )*
                }
            }

            /// Decodes the long form. `None`: a kind or a value of a newer writer, or one that ends too early.
            #[allow(unused_variables)]
            pub(super) fn get(code: u8, from: &mut $crate::record::wire::Get) -> Option<$enum> {
                match code {
                    $( $code => {
                        $( $( let $field = from.$place()?; )* )?
                        $( let $value = from.inner::<$inner>()?; )?
                        Some($enum::$name $({ $($field),* })? $(($value))?)
                    } )*
                    _ => None,
                }
            }
        }
    };
}

/// The table of events: rows of [`records`] with two more facts of each kind.
macro_rules! events {
    ($(
        $(#[$meta:meta])*
        $code:literal $name:ident
        $({ $( $(#[$field_meta:meta])* $field:ident: $type:ty = $place:ident, )* })?
        $(($value:ident: $inner:ty))?
        => opens_file: $opens:literal, is_total: $total:literal;
    )*) => {
        $crate::record::record_macro::records! {
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub enum Event {
                $(
                    $(#[$meta])*
                    $code $name
                    $({ $( $(#[$field_meta])* $field: $type = $place, )* })?
                    $(($value: $inner))?;
                )*
            }
        }

        impl Event {
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
        }
    };
}

pub(super) use {events, records};
