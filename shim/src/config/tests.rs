use super::*;

fn config(variables: &[(&str, &str)]) -> Config {
    Config::from(variables.iter().map(|(name, value)| (name.into(), value.into())))
}

#[test]
fn nothing_set() {
    let config = config(&[("HOME", "/root"), ("PATH", "/bin")]);
    assert_eq!(config.out, Out::Default);
    assert_eq!(config.max, Some(2 << 30));
    assert!(config.rules.spec.is_none() && !config.rules.bad);
    assert_eq!(config.tensors, Tensors::Python);
    assert!(config.complaints.is_empty());
}

#[test]
fn another_users_environment_limits_and_names_no_files() {
    let mut config = config(&[
        ("VRAMTRACE_OUT", "/etc/cron.d/x"),
        ("VRAMTRACE_CAP", "8GiB"),
        ("XDG_RUNTIME_DIR", "/run/user/7"),
        ("VRAMTRACE_LIVE_DIR", "/run/vramtrace"),
    ]);
    config.write_nothing();
    assert_eq!((config.out, config.runtime_directory), (Out::Off, None));
    assert_eq!(config.live_directory, None);
    assert!(config.rules.spec.is_some());
    assert!(!is_privileged());
}

#[test]
fn what_is_understood() {
    let config = config(&[
        ("VRAMTRACE_OUT", "traces/%h.%p.%r.%e.%t.%%.vtrace"),
        ("VRAMTRACE_MAX", "64MiB"),
        ("VRAMTRACE_CAP", "8GiB"),
        ("VRAMTRACE_CAP_MODE", "warn"),
        ("VRAMTRACE_CAP_WARN", "6GiB"),
        ("VRAMTRACE_STACKS", "python"),
        ("VRAMTRACE_STACK_DEPTH", "200"),
        ("VRAMTRACE_TENSORS", "full"),
        ("VRAMTRACE_OOM_REPORT", "off"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("XDG_RUNTIME_DIR", "/run/user/7"),
        ("VRAMTRACE_LIVE_DIR", "/run/vramtrace"),
    ]);
    assert_eq!(config.live_directory, Some("/run/vramtrace".into()));
    assert_eq!(config.out, Out::Pattern("traces/%h.%p.%r.%e.%t.%%.vtrace".into()));
    assert_eq!(config.max, Some(64 << 20));
    let rules = &config.rules;
    assert!(rules.spec.is_some() && !rules.bad);
    assert_eq!((rules.mode, rules.soft), (Mode::Warn, Some(Limit::Bytes(6 << 30))));
    assert_eq!(config.runtime_directory, Some("/run/user/7".into()));
    assert_eq!(config.complaints, [""; 0]);
    assert_eq!(config.tensors, Tensors::Full);
    assert_eq!(config.oom_report, OomReport::Off);
    assert_eq!(config.setting("PYTORCH_CUDA_ALLOC_CONF"), Some("expandable_segments:True"));
    let setting = ("PYTORCH_CUDA_ALLOC_CONF".into(), "expandable_segments:True".into());
    assert_eq!(config.settings, [setting]);
    let stacks = Stacks { native: false, python: true, native_depth: 200, python_depth: 200 };
    assert_eq!(config.stacks, stacks);
    assert!(!config.wants_forward(), "native stacks are needed too");
    let wants = |variables: &[(&str, &str)]| self::config(variables).wants_forward();
    assert!(wants(&[]) && wants(&[("VRAMTRACE_FORWARD", "on")]));
    let exclusive = |value| self::config(&[("VRAMTRACE_EXCLUSIVE", value)]).exclusive;
    assert_eq!(["1", "0", ""].map(exclusive), [true, false, false]);
    for (name, value) in
        [("FORWARD", "off"), ("TENSORS", "off"), ("STACKS", "native"), ("OUT", "off")]
    {
        assert!(!wants(&[(&format!("VRAMTRACE_{name}"), value)]), "{name}={value}");
    }
    let none = self::config(&[("VRAMTRACE_STACKS", "none")]).stacks;
    assert!(!none.native && !none.python);
    let both = self::config(&[("VRAMTRACE_STACKS", "python,native")]).stacks;
    assert_eq!(both, Stacks { native: true, python: true, ..Stacks::default() });
    assert_eq!(self::config(&[("VRAMTRACE_OUT", "off")]).out, Out::Off);
    assert_eq!(self::config(&[("VRAMTRACE_MAX", "unlimited")]).max, None);
}

#[test]
fn what_is_not_understood_is_said_with_what_would_be_right() {
    for (name, value, says) in [
        ("VRAMTRACE_OUT", "a%x", "%h host"),
        ("VRAMTRACE_OUT", "a%", "%%"),
        ("VRAMTRACE_MAX", "5", "5GiB"),
        ("VRAMTRACE_MAX", "infinite", "unlimited"),
        ("VRAMTRACE_MAX", "1MiB", "4MiB"),
        ("VRAMTRACE_CAP", "8", "8GiB"),
        ("VRAMTRACE_CAP_MODE", "warm", "refuse or warn"),
        ("VRAMTRACE_CAP_WARN", "80", "unit"),
        ("VRAMTRACE_CAP_WARN", "0=80%", "80%"),
        ("VRAMTRACE_CAP_GROUP", "a/b", "letters"),
        ("VRAMTRACE_CAP_GROUP", "job:8", "8GiB"),
        ("VRAMTRACE_STACKS", "off", "none"),
        ("VRAMTRACE_STACKS", "native,", "native,python"),
        ("VRAMTRACE_STACK_DEPTH", "0", "1 to 1024"),
        ("VRAMTRACE_STACK_DEPTH", "deep", "1 to 1024"),
        ("VRAMTRACE_TENSORS", "native", "full"),
        ("VRAMTRACE_FORWARD", "no", "on or off"),
        ("VRAMTRACE_RECORD", "some", "full or sampled"),
        ("VRAMTRACE_OVERHEAD", "2", "percentage"),
        ("VRAMTRACE_EXCLUSIVE", "yes", "1 (no other process uses the card) or 0"),
        ("VRAMTRACE_OOM_REPORT", "file", "stderr or off"),
        ("VRAMTRACE_CAPS", "8GiB", "is not a variable of vramtrace; docs/ENV.md lists them"),
    ] {
        let config = config(&[(name, value)]);
        assert_eq!(config.complaints.len(), 1, "{name}={value}");
        let line = &config.complaints[0];
        assert!(line.contains(name) && line.contains(says), "{line}");
        assert_eq!(config.out, Out::Default);
        assert_eq!(config.max, Some(MAX_DEFAULT));
        assert_eq!((config.rules.mode, config.rules.soft), (Mode::Refuse, None));
    }
    assert!(config(&[("VRAMTRACE_CAP", "much")]).rules.bad);
    assert!(config(&[("VRAMTRACE_CAP_GROUP", "a/b")]).rules.bad);
}

#[test]
fn a_group_shares_the_cap_unless_it_has_its_own() {
    let shared = config(&[("VRAMTRACE_CAP", "8GiB"), ("VRAMTRACE_CAP_GROUP", "job")]).rules;
    assert!(shared.spec.is_none() && shared.group.unwrap().cap.is_some());
    let both = config(&[("VRAMTRACE_CAP", "8GiB"), ("VRAMTRACE_CAP_GROUP", "job:9GiB")]);
    assert!(both.rules.spec.is_some() && both.rules.group.unwrap().cap.is_some());
}
