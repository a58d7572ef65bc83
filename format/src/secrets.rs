//! Masks secrets in command line arguments, when they are recorded and again when a trace is read.

/// The text that replaces a masked value.
pub const MASK: &str = "***";

/// The value of an option or variable is a secret if the last word of its name is one of these.
const WORDS: &str = "password passwd pwd passphrase secret secrets credential credentials apikey accesskey \
     secretkey token key";
/// Words that also occur in options with harmless values: `--pad-token '<pad>'`, `--sort-key 2`. Values of digits only,
/// and values that begin with `<`, are not masked.
const AMBIGUOUS: [&str; 2] = ["token", "key"];

/// Prefixes of the API keys of well-known services.
const PREFIXES: &str =
    "hf_ sk- sk_ ghp_ gho_ ghu_ ghs_ github_pat_ glpat- AKIA ASIA AIza xoxb- xoxp- xoxa- xoxs-";
/// Minimum length of a key after its prefix, in bytes.
const MIN_BYTES: usize = 8;

/// Returns the arguments with secret values replaced by [`MASK`]. A second call changes nothing.
pub fn mask(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut next_is_secret = None;
    let one = |argument: String| {
        let named = next_is_secret.take();
        if let Some(word) = named
            && !argument.starts_with("--")
        {
            return masked_value(word, &argument);
        }
        match argument.split_once('=') {
            Some((name, value)) => match is_name(name).then(|| secret_word(name)).flatten() {
                Some(word) => format!("{name}={}", masked_value(word, value)),
                None => mask_within(&argument),
            },
            None => {
                next_is_secret =
                    argument.starts_with('-').then(|| secret_word(&argument)).flatten();
                mask_within(&argument)
            }
        }
    };
    arguments.into_iter().map(one).collect()
}

fn masked_value(word: &str, value: &str) -> String {
    let harmless = value.is_empty()
        || AMBIGUOUS.contains(&word)
            && (value.bytes().all(|byte| byte.is_ascii_digit()) || value.starts_with('<'));
    if harmless { value.to_string() } else { MASK.to_string() }
}

/// Whether the text can be the name of an option or variable, and is not code.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

/// The last word of a name, if it is one of [`WORDS`]. `hfToken` has two words.
fn secret_word(name: &str) -> Option<&'static str> {
    let last = name.rsplit(['-', '_', '.', '/']).next()?;
    let hump = last
        .rfind(|c: char| c.is_ascii_uppercase())
        .filter(|at| last[..*at].ends_with(|c: char| c.is_ascii_lowercase()));
    let (whole, hump) = (last.to_ascii_lowercase(), hump.map(|at| last[at..].to_ascii_lowercase()));
    WORDS.split(' ').find(|word| *word == whole || hump.as_deref() == Some(word))
}

/// Masks API keys (recognised by their prefix) and passwords in URLs anywhere in an argument.
fn mask_within(argument: &str) -> String {
    let mut out = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(first) = rest.chars().next() {
        let begins = !out.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if let Some(password) = out.ends_with("://").then(|| url_password(rest)).flatten() {
            let user = rest.split(':').next().unwrap_or_default();
            out.push_str(user);
            out.push(':');
            out.push_str(MASK);
            rest = &rest[user.len() + 1 + password..];
            continue;
        }
        let length = if begins { key_length(rest) } else { 0 };
        match length {
            0 => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
            _ => {
                out.push_str(MASK);
                rest = &rest[length..];
            }
        }
    }
    out
}

/// Length of the password in `user:password@host`, in bytes.
fn url_password(rest: &str) -> Option<usize> {
    let authority = rest.split(['/', '?', '#', ' ', '"', '\'']).next()?;
    let (credentials, _) = authority.rsplit_once('@')?;
    credentials.split_once(':').map(|(_, password)| password.len())
}

/// Length of the API key that begins here, in bytes. 0: none begins here.
fn key_length(rest: &str) -> usize {
    let Some(prefix) = PREFIXES.split(' ').find(|prefix| rest.starts_with(prefix)) else {
        return 0;
    };
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'-';
    let tail = rest.as_bytes()[prefix.len()..].iter().take_while(|byte| plain(byte)).count();
    if tail >= MIN_BYTES { prefix.len() + tail } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(line: &str) -> String {
        let once = mask(line.split(' ').map(str::to_string));
        assert_eq!(mask(once.clone()), once, "twice is as once");
        once.join(" ")
    }

    #[test]
    fn values_of_names_that_end_in_a_secret_word() {
        for (line, shown) in [
            ("train.py --hf-token abc --lr 3", "train.py --hf-token *** --lr 3"),
            ("--hf_token=abc", "--hf_token=***"),
            ("--api-key k", "--api-key ***"),
            ("--apikey=k", "--apikey=***"),
            ("-password 1234", "-password ***"),
            ("--hfToken abc", "--hfToken ***"),
            ("WANDB_API_KEY=abc python", "WANDB_API_KEY=*** python"),
            ("model.auth.secret=abc", "model.auth.secret=***"),
            ("--db-passwd -x", "--db-passwd ***"),
            ("--aws-credentials f", "--aws-credentials ***"),
            ("--token --lr 3", "--token --lr 3"),
        ] {
            assert_eq!(masked(line), shown);
        }
    }

    #[test]
    fn other_values_are_not_masked() {
        for line in [
            "--num-tokens 8",
            "--max-token 128",
            "--pad-token <pad>",
            "--monkey see",
            "--keys a",
            "--sort-key 2",
            "hf_x sk-learn AKIA",
            "task_hf_abcdefghijk",
            "a==b_key",
            "https://host/a:b@c",
            "tokenizer=bert key",
        ] {
            assert_eq!(masked(line), line);
        }
    }

    #[test]
    fn keys_by_prefix_and_passwords_in_urls() {
        for (line, shown) in [
            ("x hf_abcdefghijklmnop y", "x *** y"),
            ("--auth=sk-abcdefghij", "--auth=***"),
            ("-c login('ghp_0123456789');go", "-c login('***');go"),
            ("AKIA0123456789ABCDEF", "***"),
            ("xoxb-12345678-abc", "***"),
            ("redis://me:pass@host:1/x", "redis://me:***@host:1/x"),
            ("--uri=postgres://u:p@ss@h/d", "--uri=postgres://u:***@h/d"),
            ("https://user@host/x", "https://user@host/x"),
        ] {
            assert_eq!(masked(line), shown);
        }
    }
}
