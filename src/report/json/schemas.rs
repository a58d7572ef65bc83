//! Checks that docs/schemas has the JSON Schema of each document that this folder makes.
//! `BLESS=1 cargo test --lib schemas::` writes the schemas.

use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::damage::DamageFacts;
use super::{
    diff, fits, frag, holders, leaks, oom, phases, process, ps, ranks, run, tree, verify, whatif,
};
use crate::analysis::Phase;
use crate::analysis::steps::StepsFacts;

/// A document with the key that [`super::damage::WithDamage`] adds.
#[derive(JsonSchema)]
#[allow(dead_code)]
struct Damaged<D> {
    #[serde(flatten)]
    document: D,
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
    let mut report = schema::<process::ProcessesReport>(process::SCHEMA);
    // `--by phase` adds `phases` and `phases_before` to each process.
    let phases = schema::<(Vec<Phase>, Vec<phases::PhasesBeforeFacts>)>("phases");
    report["$defs"]["ProcessFacts"]["properties"]["phases_before"] =
        json!({ "type": "array", "items": { "$ref": "#/$defs/PhasesBeforeFacts" } });
    report["$defs"]["ProcessFacts"]["properties"]["phases"] =
        json!({ "type": "array", "items": { "$ref": "#/$defs/Phase" } });
    for (name, definition) in phases["$defs"].as_object().unwrap() {
        report["$defs"][name] = definition.clone();
    }
    // `--by step` adds `steps` to each process.
    let steps = schema::<Option<StepsFacts>>("steps");
    report["$defs"]["ProcessFacts"]["properties"]["steps"] =
        json!({ "$ref": "#/$defs/StepsFacts" });
    for (name, definition) in steps["$defs"].as_object().unwrap() {
        report["$defs"][name] = definition.clone();
    }
    // `run` exists only if there are several processes.
    let run = schema::<Option<ranks::RunFacts>>("run");
    report["properties"]["run"] = json!({ "$ref": "#/$defs/RunFacts" });
    for (name, definition) in run["$defs"].as_object().unwrap() {
        report["$defs"][name] = definition.clone();
    }
    let mut wrong = Vec::new();
    for (name, schema) in [
        (process::SCHEMA, report),
        (holders::SCHEMA, schema::<Damaged<holders::HoldersReport>>(holders::SCHEMA)),
        (leaks::SCHEMA, schema::<Damaged<leaks::LeaksReport>>(leaks::SCHEMA)),
        (oom::SCHEMA, schema::<Damaged<oom::OomsReport>>(oom::SCHEMA)),
        (frag::SCHEMA, schema::<Damaged<frag::FragReport>>(frag::SCHEMA)),
        (whatif::SCHEMA, schema::<Damaged<whatif::WhatifReport>>(whatif::SCHEMA)),
        (fits::SCHEMA, schema::<Damaged<fits::FitsReport>>(fits::SCHEMA)),
        (run::SCHEMA, schema::<Damaged<run::RunRecord>>(run::SCHEMA)),
        (tree::SCHEMA, schema::<Damaged<tree::TreeReport>>(tree::SCHEMA)),
        (diff::SCHEMA, schema::<diff::DiffReport>(diff::SCHEMA)),
        (verify::SCHEMA, schema::<verify::VerifyReport>(verify::SCHEMA)),
        (ps::SCHEMA, schema::<ps::PsReport>(ps::SCHEMA)),
    ] {
        check(name, &schema, &mut wrong);
    }
    assert!(wrong.is_empty(), "not those of the code: {wrong:?}; look at them, then BLESS=1");
}
