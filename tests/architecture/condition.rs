//! Which items only tests have.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Is the item absent from every build without `cfg(test)`?
pub fn only_in_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|condition| !can_hold(&condition))
    })
}

/// Can the condition hold where `test` does not? Every other option may be either.
fn can_hold(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => !path.is_ident("test"),
        Meta::NameValue(_) => true,
        Meta::List(list) => {
            let Ok(parts) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            else {
                return true;
            };
            if list.path.is_ident("all") {
                parts.iter().all(can_hold)
            } else if list.path.is_ident("any") {
                parts.iter().any(can_hold)
            } else {
                true
            }
        }
    }
}

/// The items' attributes, whatever kind the item is.
pub fn attributes(item: &syn::Item) -> &[Attribute] {
    use syn::Item::*;
    match item {
        Const(i) => &i.attrs,
        Enum(i) => &i.attrs,
        ExternCrate(i) => &i.attrs,
        Fn(i) => &i.attrs,
        ForeignMod(i) => &i.attrs,
        Impl(i) => &i.attrs,
        Macro(i) => &i.attrs,
        Mod(i) => &i.attrs,
        Static(i) => &i.attrs,
        Struct(i) => &i.attrs,
        Trait(i) => &i.attrs,
        TraitAlias(i) => &i.attrs,
        Type(i) => &i.attrs,
        Union(i) => &i.attrs,
        Use(i) => &i.attrs,
        _ => &[],
    }
}
