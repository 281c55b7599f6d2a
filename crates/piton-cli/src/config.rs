//! Which server, with which headers: from flags, the environment and a profile of the config file, in this order.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::args::Connection;
use crate::failure::{Failure, Result};
use crate::time;

/// Where the demo server listens.
pub(crate) const DEFAULT_BASE_URL: &str = "http://127.0.0.1:7420/api/workflows";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_RETRIES: u32 = 2;
/// With doubling delays, more is of no use.
const RETRIES_MAX: u32 = 20;

/// What a client needs to know.
pub(crate) struct Settings {
    /// Without a slash at the end.
    pub(crate) base_url: String,
    pub(crate) base_url_is_default: bool,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
}

impl fmt::Debug for Settings {
    /// Headers are secrets: no value is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Settings")
            .field("base_url", &self.base_url)
            .field("headers", &headers)
            .finish_non_exhaustive()
    }
}

/// The config file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The profile to use when none is named.
    profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Profile {
    base_url: Option<String>,
    #[serde(default)]
    headers: Vec<String>,
    timeout: Option<String>,
    retries: Option<u32>,
}

impl Settings {
    /// Puts together what was said where.
    pub(crate) fn resolve(flags: &Connection) -> Result<Self> {
        let profile = profile(flags)?;
        let env_headers = std::env::var("PITON_HEADERS").unwrap_or_default();
        Self::merge(flags, &env_headers, profile)
    }

    fn merge(flags: &Connection, env_headers: &str, profile: Profile) -> Result<Self> {
        let said = flags.base_url.as_deref();
        // The headers of a profile are for its own server: --base-url must not send them to another.
        let at_home = match (said, &profile.base_url) {
            (Some(said), Some(own)) => said.trim_end_matches('/') == own.trim_end_matches('/'),
            (Some(_), None) | (None, _) => true,
        };
        let base_url = said.or(profile.base_url.as_deref());
        let mut headers = Vec::new();
        for header in profile.headers.iter().filter(|_| at_home) {
            put_header(&mut headers, header, "the config file")?;
        }
        for header in env_headers.lines().filter(|line| !line.trim().is_empty()) {
            put_header(&mut headers, header, "PITON_HEADERS")?;
        }
        for header in &flags.header {
            put_header(&mut headers, header, "--header")?;
        }
        let of_profile = profile.timeout.as_deref().map(time::duration).transpose();
        let of_profile = of_profile
            .map_err(|error| Failure::usage(format!("`timeout` in the config file: {error}")))?;
        Ok(Self {
            base_url: checked_base_url(base_url.unwrap_or(DEFAULT_BASE_URL))?,
            base_url_is_default: base_url.is_none(),
            headers,
            timeout: flags.timeout.or(of_profile).unwrap_or(DEFAULT_TIMEOUT),
            retries: flags.retries.or(profile.retries).unwrap_or(DEFAULT_RETRIES).min(RETRIES_MAX),
        })
    }
}

fn profile(flags: &Connection) -> Result<Profile> {
    let Some(path) = flags.config.clone().or_else(default_path) else {
        return named(File::default(), flags.profile.as_deref(), "there is no config file");
    };
    let must_exist = flags.config.is_some();
    let place = path.display().to_string();
    named(read(&path, must_exist)?, flags.profile.as_deref(), &place)
}

fn read(path: &Path, must_exist: bool) -> Result<File> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok(File::default());
        }
        Err(error) => {
            return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
        }
    };
    toml::from_str(&text).map_err(|error| {
        // Not the error's own text, which quotes the line: it may hold a token.
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        let message = error.message();
        Failure::usage(format!("{}, line {line}: {message}", path.display()))
            .next("`piton --help` shows what a config file looks like")
    })
}

fn named(mut file: File, name: Option<&str>, place: &str) -> Result<Profile> {
    let Some(name) = name.map(str::to_owned).or_else(|| file.profile.clone()) else {
        return Ok(Profile::default());
    };
    let known: Vec<&str> = file.profiles.keys().map(String::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let missing = Failure::usage(format!("there is no profile `{name}` in {place}"));
    file.profiles.remove(&name).ok_or_else(|| missing.next(format!("profiles there: {known}")))
}

/// The platform's place for config files.
pub(crate) fn default_path() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = if cfg!(windows) {
        var("APPDATA")?
    } else if cfg!(target_os = "macos") {
        var("HOME")?.join("Library/Application Support")
    } else {
        var("XDG_CONFIG_HOME").or_else(|| Some(var("HOME")?.join(".config")))?
    };
    Some(folder.join("piton/config.toml"))
}

/// Adds a header, in place of an earlier one of the same name. No value appears in an error.
fn put_header(headers: &mut Vec<(String, String)>, line: &str, place: &str) -> Result<()> {
    let wrong = |what: &str| {
        Failure::usage(format!("a header in {place} {what}"))
            .next("write it as \"Name: value\", such as \"Authorization: Bearer TOKEN\"")
    };
    let (name, value) = line.split_once(':').ok_or_else(|| wrong("has no colon"))?;
    let (name, value) = (name.trim(), value.trim());
    if ureq::http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(wrong("has a name that is none"));
    }
    if ureq::http::HeaderValue::from_str(value).is_err() {
        return Err(wrong(&format!("({name}) has characters that no header may have")));
    }
    headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    headers.push((name.to_owned(), value.to_owned()));
    Ok(())
}

fn checked_base_url(url: &str) -> Result<String> {
    let wrong = |what: &str| {
        Failure::usage(format!("the base URL {what}"))
            .next("it is the whole address of the API, such as https://host/api/workflows")
    };
    let url = url.trim().trim_end_matches('/');
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or_else(|| wrong("does not start with http:// or https://"))?;
    // Not shown: what is wrong may be a password.
    if rest.contains('@') {
        return Err(wrong("holds a user or password; send it with --header instead"));
    }
    if rest.contains(['?', '#']) {
        return Err(wrong("has a query or a fragment"));
    }
    let parsed: Option<ureq::http::Uri> = url.parse().ok();
    match parsed.as_ref().and_then(|uri| uri.host()).is_some_and(|host| !host.is_empty()) {
        true => Ok(url.to_owned()),
        false => Err(wrong("is not a URL")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(base_url: Option<&str>, headers: &[&str]) -> Connection {
        Connection {
            base_url: base_url.map(str::to_owned),
            header: headers.iter().map(|header| (*header).to_owned()).collect(),
            ..Connection::default()
        }
    }

    fn production() -> Profile {
        let text = "base-url = 'https://prod/api/workflows/'\n\
                    headers = ['Authorization: Bearer profile', 'X-Team: a']\ntimeout = '5s'\nretries = 7";
        toml::from_str(text).expect("a profile")
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_profile() {
        let settings =
            Settings::merge(&flags(None, &[]), "", Profile::default()).expect("defaults");
        assert_eq!(settings.base_url, DEFAULT_BASE_URL);
        assert!(settings.base_url_is_default);

        let settings = Settings::merge(&flags(None, &[]), "", production()).expect("a profile");
        assert_eq!(settings.base_url, "https://prod/api/workflows");
        assert_eq!((settings.timeout, settings.retries), (Duration::from_secs(5), 7));

        let env = "X-Team: b\nX-Other: 1\n";
        let flags = flags(None, &["authorization: Bearer flag"]);
        let settings = Settings::merge(&flags, env, production()).expect("all three");
        let headers: Vec<String> =
            settings.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(headers, ["X-Team=b", "X-Other=1", "authorization=Bearer flag"]);
    }

    #[test]
    fn headers_of_a_profile_are_for_its_own_server() {
        let elsewhere = flags(Some("http://localhost/api/workflows"), &[]);
        let settings = Settings::merge(&elsewhere, "", production()).expect("another server");
        assert!(settings.headers.is_empty());
        let home = flags(Some("https://prod/api/workflows"), &[]);
        assert_eq!(Settings::merge(&home, "", production()).expect("its own").headers.len(), 2);
    }

    #[test]
    fn no_error_shows_a_secret() {
        let errors = [
            Settings::merge(&flags(None, &["s3cret"]), "", Profile::default()),
            Settings::merge(&flags(None, &["Authorization: s3cret\u{1}"]), "", Profile::default()),
            Settings::merge(&flags(None, &["s3cret s3cret: x"]), "", Profile::default()),
            Settings::merge(
                &flags(Some("http://ada:s3cret@host/api"), &[]),
                "",
                Profile::default(),
            ),
            Settings::merge(
                &flags(Some("http://host/api?token=s3cret"), &[]),
                "",
                Profile::default(),
            ),
        ];
        for error in errors {
            let said = error.expect_err("wrong").to_string();
            assert!(!said.contains("s3cret"), "{said}");
        }
        let settings =
            Settings::merge(&flags(None, &["A: s3cret"]), "", Profile::default()).expect("fine");
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn a_broken_config_file_is_named_with_its_line_but_not_its_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "[profiles.x]\nheaders = [\"Authorization: s3cret\"\nretries = 1\n")
            .expect("written");
        let said = read(&path, true).err().expect("broken").to_string();
        assert!(said.contains("config.toml, line"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
        assert!(read(&folder.path().join("none.toml"), false).is_ok());
        assert!(read(&folder.path().join("none.toml"), true).is_err());
    }

    #[test]
    fn only_whole_addresses_are_base_urls() {
        for wrong in ["", "host", "ftp://host", "http://", "http:///api", "http://a b/"] {
            assert!(checked_base_url(wrong).is_err(), "{wrong}");
        }
        assert_eq!(checked_base_url(" http://h:1/api/ ").expect("a URL"), "http://h:1/api");
        assert!(checked_base_url("http://[::1]:7420/api/workflows").is_ok());
    }
}
