//! Checks that docs/schemas has the JSON Schema of each document that this folder makes.
//! `BLESS=1 cargo test --lib schemas::` writes the schemas.

use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::*;
use crate::analysis::fits::Answer;

/// A [`Document`] that names no damage.
#[derive(JsonSchema)]
#[allow(dead_code)]
struct Named<F> {
    schema: String,
    #[serde(flatten)]
    facts: F,
}

/// A [`Document`].
#[derive(JsonSchema)]
#[allow(dead_code)]
struct Damaged<F> {
    schema: String,
    #[serde(flatten)]
    facts: F,
    /// Only where a trace is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<Vec<DamageFacts>>,
}

/// The schema of a document.
fn schema<D: JsonSchema>(name: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<D>();
    let mut schema = serde_json::to_value(schema).unwrap();
    schema["title"] = name.into();
    schema["properties"]["schema"] = json!({ "const": name });
    schema
}

/// Compares a schema with its file, or writes the file if `BLESS` is set.
fn check(name: &str, schema: &Value, wrong: &mut Vec<String>) {
    let file = format!("docs/schemas/{}.json", name.replace('/', "-"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
    let text = format!("{schema:#}\n");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    if std::fs::read_to_string(&path).unwrap_or_default() != text {
        wrong.push(file);
    }
}

#[test]
fn the_schemas_are_those_of_the_code() {
    let mut wrong = Vec::new();
    for (name, schema) in [
        (process::SCHEMA, schema::<Named<process::ProcessesReport>>(process::SCHEMA)),
        (HOLDERS, schema::<Damaged<HoldersReport>>(HOLDERS)),
        (LEAKS, schema::<Damaged<LeaksReport>>(LEAKS)),
        (OOM, schema::<Damaged<OomsReport>>(OOM)),
        (FRAG, schema::<Damaged<FragReport>>(FRAG)),
        (WHATIF, schema::<Damaged<WhatifReport>>(WHATIF)),
        (FITS, schema::<Damaged<Answer>>(FITS)),
        (run::SCHEMA, schema::<Damaged<run::RunRecord>>(run::SCHEMA)),
        (DIFF, schema::<Named<DiffFacts>>(DIFF)),
        (VERIFY, schema::<Named<VerifyReport>>(VERIFY)),
        (ps::SCHEMA, schema::<Named<ps::PsReport>>(ps::SCHEMA)),
    ] {
        check(name, &schema, &mut wrong);
    }
    assert!(wrong.is_empty(), "not those of the code: {wrong:?}; look at them, then BLESS=1");
}
