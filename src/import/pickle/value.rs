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
    List(Rc<Container>),
    Tuple(Rc<Container>),
    /// Keys and values, in turn.
    Dict(Rc<Container>),
}

#[derive(Debug, Default)]
pub struct Container(pub(super) RefCell<Vec<Value>>);

/// Maximum number of keys of a dict: a key is searched among the last ones. No dict of a snapshot has more keys.
const MAX_KEYS: usize = 1_000;

impl Value {
    /// The entry of a dict with this key.
    pub fn get(&self, key: &str) -> Option<Value> {
        let Value::Dict(entries) = self else { return None };
        let entries = entries.0.borrow();
        let is_it = |pair: &&[Value]| matches!(&pair[0], Value::Text(text) if **text == *key);
        entries.chunks_exact(2).rev().take(MAX_KEYS).find(is_it).map(|pair| pair[1].clone())
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
            Value::List(items) | Value::Tuple(items) => Some(items.0.borrow().clone()),
            _ => None,
        }
    }

    /// The address of the container, equal for values that share it. `None`: not a container.
    pub fn identity(&self) -> Option<usize> {
        match self {
            Value::List(all) | Value::Tuple(all) | Value::Dict(all) => {
                Some(Rc::as_ptr(all) as usize)
            }
            _ => None,
        }
    }
}

impl From<serde_json::Value> for Value {
    /// The parser bounds the depth of JSON.
    fn from(json: serde_json::Value) -> Value {
        use serde_json::Value as Json;
        let all = |items: Vec<Value>| Rc::new(Container(items.into()));
        match json {
            Json::Null => Value::None,
            Json::Bool(on) => Value::Bool(on),
            Json::Number(n) => {
                let float = || n.as_f64().map_or(Value::Huge, Value::Float);
                n.as_i64().map_or_else(float, Value::Int)
            }
            Json::String(text) => Value::Text(text.into()),
            Json::Array(items) => Value::List(all(items.into_iter().map(Value::from).collect())),
            Json::Object(entries) => {
                let pair = |(key, of): (String, Json)| [Value::Text(key.into()), of.into()];
                Value::Dict(all(entries.into_iter().flat_map(pair).collect()))
            }
        }
    }
}

/// Containers may nest a million levels deep: recursive drops would overflow the stack. So the elements of one without
/// other references are moved out before it is dropped.
impl Drop for Container {
    fn drop(&mut self) {
        let mut pending = self.0.take();
        while let Some(value) = pending.pop() {
            if let Value::List(mut all) | Value::Tuple(mut all) | Value::Dict(mut all) = value
                && let Some(alone) = Rc::get_mut(&mut all)
            {
                pending.append(alone.0.get_mut());
            }
        }
    }
}
