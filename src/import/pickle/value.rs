//! The values of a pickle. Containers are reference-counted and shared as in the pickle, so that memory stays
//! proportional to the file.

use std::cell::RefCell;
use std::rc::Rc;

/// A value. Containers are shared: a pickle may name one several times, and fill it later.
#[derive(Clone, Debug)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits; its value is not kept.
    Huge,
    Float(f64),
    Text(Rc<str>),
    Bytes,
    List(Rc<List>),
    Tuple(Rc<Tuple>),
    Dict(Rc<Dict>),
}

#[derive(Debug, Default)]
pub struct List(pub(super) RefCell<Vec<Value>>);

#[derive(Debug, Default)]
pub struct Tuple(pub(super) Vec<Value>);

#[derive(Debug, Default)]
pub struct Dict(pub(super) RefCell<Vec<(Value, Value)>>);

/// A key is searched among the last so many of a dict. No dict of a snapshot has more keys.
const MOST_KEYS: usize = 1_000;

impl Value {
    /// The entry of a dict with this key.
    pub fn get(&self, key: &str) -> Option<Value> {
        let Value::Dict(entries) = self else { return None };
        let entries = entries.0.borrow();
        let found = entries
            .iter()
            .rev()
            .take(MOST_KEYS)
            .find(|(k, _)| matches!(k, Value::Text(t) if &**t == key));
        found.map(|(_, value)| value.clone())
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i64::from(*b)),
            _ => None,
        }
    }

    pub fn float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            _ => self.int().map(|n| n as f64),
        }
    }

    pub fn text(&self) -> Option<Rc<str>> {
        match self {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// The elements of a list or tuple.
    pub fn items(&self) -> Option<Vec<Value>> {
        match self {
            Value::List(items) => Some(items.0.borrow().clone()),
            Value::Tuple(items) => Some(items.0.clone()),
            _ => None,
        }
    }

    /// The keys and values of a dict.
    pub fn pairs(&self) -> Option<Vec<(Value, Value)>> {
        match self {
            Value::Dict(entries) => Some(entries.0.borrow().clone()),
            _ => None,
        }
    }

    /// The address of the container, equal for values that share it. `None`: not a container.
    pub fn identity(&self) -> Option<usize> {
        match self {
            Value::List(items) => Some(Rc::as_ptr(items) as usize),
            Value::Tuple(items) => Some(Rc::as_ptr(items) as usize),
            Value::Dict(entries) => Some(Rc::as_ptr(entries) as usize),
            _ => None,
        }
    }
}

// Containers may nest a million levels deep: recursive drops would overflow the stack.

impl Drop for List {
    fn drop(&mut self) {
        take_apart(self.0.take());
    }
}

impl Drop for Tuple {
    fn drop(&mut self) {
        take_apart(std::mem::take(&mut self.0));
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        let entries = self.0.take();
        take_apart(entries.into_iter().flat_map(|(key, value)| [key, value]).collect());
    }
}

/// Drops values iteratively: the elements of a container without other references are moved out first.
fn take_apart(mut pending: Vec<Value>) {
    while let Some(value) = pending.pop() {
        match value {
            Value::List(mut items) => {
                if let Some(items) = Rc::get_mut(&mut items) {
                    pending.append(items.0.get_mut());
                }
            }
            Value::Tuple(mut items) => {
                if let Some(items) = Rc::get_mut(&mut items) {
                    pending.append(&mut items.0);
                }
            }
            Value::Dict(mut entries) => {
                if let Some(entries) = Rc::get_mut(&mut entries) {
                    let entries = entries.0.get_mut().drain(..);
                    pending.extend(entries.flat_map(|(key, value)| [key, value]));
                }
            }
            _ => {}
        }
    }
}
