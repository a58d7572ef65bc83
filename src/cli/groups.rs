//! The commands of `vramtrace --help` in groups, each with the question that it answers.

use clap::Command;

/// Headings, and the commands below each. A command that stands in none is listed under [`OTHER`].
const GROUPS: [(&str, &[&str]); 6] = [
    ("Record", &["run", "env", "enable", "disable", "demo", "record", "doctor"]),
    ("Look", &["report", "holders", "flame", "diff", "ps", "top", "verify"]),
    ("Explain", &["oom", "leaks", "frag", "whatif", "fits"]),
    ("Limit", &["cap"]),
    ("Watch", &["metrics"]),
    ("Share", &["export", "pack", "import"]),
];
const OTHER: &str = "Other";

/// With a help that lists the commands by group.
pub fn grouped(command: Command) -> Command {
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let visible: Vec<&Command> =
        command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let width = visible.iter().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut list = String::new();
    let mut section = |heading: &str, commands: &[&Command]| {
        if commands.is_empty() {
            return;
        }
        list.push_str(&format!("{header}{heading}:{header:#}\n"));
        for command in commands {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let name = command.get_name();
            list.push_str(&format!("  {literal}{name:width$}{literal:#}  {about}\n"));
        }
        list.push('\n');
    };
    for (heading, names) in GROUPS {
        let of_name = |name: &&str| visible.iter().copied().find(|it| it.get_name() == *name);
        section(heading, &names.iter().filter_map(of_name).collect::<Vec<_>>());
    }
    let in_group = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let others: Vec<&Command> =
        visible.iter().copied().filter(|command| !in_group(command.get_name())).collect();
    section(OTHER, &others);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{header}Options:{header:#}\n\
         {{options}}{{after-help}}"
    );
    command.help_template(template)
}
