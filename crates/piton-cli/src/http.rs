//! Calls over HTTP: where headers may go, what is tried again, and what an answer means.
//!
//! **Headers are secrets.** They are never printed, and go to no other host than the one in the base URL.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::clock;
use crate::config::Settings;
use crate::failure::{Failure, Result};
use crate::time::words;

/// More than a page of a hundred results of 1 MiB each.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
const REDIRECTS_MAX: usize = 5;
/// Doubled before each further try.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// Calls one server.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    settings: Settings,
}

/// The body of an error.
#[derive(Deserialize)]
struct Refusal {
    message: String,
    code: String,
    #[serde(default)]
    issues: Vec<Issue>,
}

#[derive(Deserialize)]
struct Issue {
    path: String,
    message: String,
}

/// What is sent with a `POST`.
struct Posting<'a> {
    body: &'a str,
    idempotency_key: Option<&'a str>,
}

/// A call that brought no usable answer.
struct Broken {
    failure: Failure,
    /// Whether the server cannot have seen the request.
    unsent: bool,
    /// What the server asks for, in seconds.
    retry_after_s: Option<u16>,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, where it is known which headers may go along.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls)
            .user_agent(concat!("piton-cli/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.into(), settings }
    }

    /// Reads. Safe to repeat.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.get_within(path, Duration::ZERO)
    }

    /// Reads, where the server may take `longer` than usual.
    pub(crate) fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        longer: Duration,
    ) -> Result<T> {
        self.persistently(true, || self.call(path, None, self.settings.timeout + longer))
    }

    /// Does something. Repeated only with a key, which makes that harmless, or if it cannot have arrived.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &str,
        idempotency_key: Option<&str>,
    ) -> Result<T> {
        let posting = Posting { body, idempotency_key };
        self.persistently(idempotency_key.is_some(), || {
            self.call(path, Some(&posting), self.settings.timeout)
        })
    }

    fn persistently<T>(
        &self,
        repeatable: bool,
        call: impl Fn() -> std::result::Result<T, Broken>,
    ) -> Result<T> {
        let mut delay = RETRY_DELAY;
        let mut retries_left = self.settings.retries;
        loop {
            let broken = match call() {
                Ok(answer) => return Ok(answer),
                Err(broken) => broken,
            };
            let again = broken.failure.passing && (repeatable || broken.unsent);
            if !again || retries_left == 0 {
                return Err(broken.failure);
            }
            retries_left -= 1;
            let asked = broken.retry_after_s.map(|seconds| Duration::from_secs(seconds.into()));
            clock::wait(asked.unwrap_or(delay).min(RETRY_DELAY_MAX));
            delay *= 2;
        }
    }

    fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        posting: Option<&Posting<'_>>,
        timeout: Duration,
    ) -> std::result::Result<T, Broken> {
        let mut url = format!("{}{path}", self.settings.base_url);
        let mut with_headers = true;
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send(&url, with_headers, posting, timeout);
            let response = response.map_err(|error| self.no_answer(&error, timeout))?;
            if !response.status().is_redirection() {
                return self.read(response);
            }
            let target = redirect_target(&url, response.headers())?;
            if posting.is_some() {
                return Err(Broken::from(moved(&target)));
            }
            with_headers &= may_carry_headers(&url, &target);
            url = target;
        }
        let failure = Failure::unreachable("the server redirects in a circle");
        Err(Broken::from(Failure { passing: false, ..failure }))
    }

    fn send(
        &self,
        url: &str,
        with_headers: bool,
        posting: Option<&Posting<'_>>,
        timeout: Duration,
    ) -> std::result::Result<Response<Body>, ureq::Error> {
        let headers = self.settings.headers.iter().filter(|_| with_headers);
        let Some(Posting { body, idempotency_key }) = posting else {
            let mut request = self.agent.get(url);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            return request.config().timeout_global(Some(timeout)).build().call();
        };
        let mut request = self.agent.post(url).content_type("application/json");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", *key);
        }
        request.config().timeout_global(Some(timeout)).build().send(*body)
    }

    fn read<T: DeserializeOwned>(
        &self,
        mut response: Response<Body>,
    ) -> std::result::Result<T, Broken> {
        let status = response.status();
        let retry_after_s = retry_after_s(response.headers());
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| {
            Broken::from(Failure::unreachable(format!("the answer broke off: {error}")))
        })?;
        if status.is_success() {
            return serde_json::from_str(&text).map_err(|error| self.not_piton(&error).into());
        }
        let mut failure = refusal(status, &text);
        if failure.next.is_none() && failure.code.as_deref().is_none_or(|c| c == "ROUTE_NOT_FOUND")
        {
            failure.next = Some(self.about_the_base_url());
        }
        Err(Broken { failure, unsent: false, retry_after_s })
    }

    fn no_answer(&self, error: &ureq::Error, timeout: Duration) -> Broken {
        let host = &self.settings.base_url;
        let refused =
            |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        let unsent = matches!(
            error,
            ureq::Error::HostNotFound
                | ureq::Error::ConnectionFailed
                | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
        ) || matches!(error, ureq::Error::Io(error) if refused(error));
        let failure = if matches!(error, ureq::Error::Timeout(_)) {
            let ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
            let message = format!("no answer from {host} within {}", words(ms));
            Failure::unreachable(message).next("give it more time with --timeout 2m")
        } else {
            Failure::unreachable(format!("cannot reach {host}: {error}"))
                .next(self.about_the_base_url())
        };
        Broken { failure, unsent, retry_after_s: None }
    }

    fn not_piton(&self, error: &serde_json::Error) -> Failure {
        let message = format!("the answer of {} is not Piton's: {error}", self.settings.base_url);
        let failure = Failure::unreachable(message).next(self.about_the_base_url());
        Failure { passing: false, ..failure }
    }

    fn about_the_base_url(&self) -> String {
        let whole = "the base URL is the whole address of the API, such as http://127.0.0.1:7420/api/workflows";
        if self.settings.base_url_is_default {
            return format!(
                "start the demo server there with `cargo run --release`,\n\
                 or say where yours is with --base-url or PITON_BASE_URL:\n{whole}"
            );
        }
        format!("is the server up, and is the base URL right?\n{whole}")
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self { failure, unsent: false, retry_after_s: None }
    }
}

fn refusal(status: StatusCode, text: &str) -> Failure {
    let passing = matches!(status.as_u16(), 429 | 502 | 503 | 504);
    let Ok(Refusal { message, code, issues }) = serde_json::from_str(text) else {
        let failure = Failure::refused(format!("the server answered {status}"));
        let next = matches!(status.as_u16(), 401 | 403)
            .then(|| "say who you are, such as with -H \"Authorization: Bearer TOKEN\"".to_owned());
        return Failure { passing, next, ..failure };
    };
    let told = |issue: &Issue| !message.contains(&issue.message);
    let details = issues.iter().filter(|i| told(i)).map(|i| format!("{}: {}", i.path, i.message));
    let details = details.collect();
    Failure { code: Some(code), details, passing, ..Failure::refused(message) }
}

fn retry_after_s(headers: &HeaderMap) -> Option<u16> {
    headers.get("retry-after")?.to_str().ok()?.parse().ok()
}

fn moved(target: &str) -> Failure {
    let failure =
        Failure::unreachable(format!("the API has moved: the server sends us to {target}"));
    let next = "if you trust that place, use it as --base-url (without the part after …/workflows)";
    Failure { passing: false, ..failure.next(next) }
}

/// Where a redirect leads.
fn redirect_target(from: &str, headers: &HeaderMap) -> Result<String> {
    let nowhere = || Failure::unreachable("the server redirects to nowhere");
    let location = headers.get("location").and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(nowhere)?;
    if location.starts_with("http://") || location.starts_with("https://") {
        return Ok(location.to_owned());
    }
    let (scheme, rest) = from.split_once("://").ok_or_else(nowhere)?;
    if location.starts_with("//") {
        return Ok(format!("{scheme}:{location}"));
    }
    let host = rest.split('/').next().unwrap_or_default();
    match location.starts_with('/') {
        true => Ok(format!("{scheme}://{host}{location}")),
        false => Err(nowhere()),
    }
}

/// To the same place only, or to the same host under the safer scheme.
fn may_carry_headers(from: &str, to: &str) -> bool {
    let place = |url: &str| {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        Some((uri.host()?.to_ascii_lowercase(), scheme, uri.port_u16()))
    };
    let (Some(from), Some(to)) = (place(from), place(to)) else {
        return false;
    };
    let safer = from.1 == "http" && to.1 == "https" && from.2.is_none() && to.2.is_none();
    from.0 == to.0 && ((from.1 == to.1 && from.2 == to.2) || safer)
}

/// A part of a path, with everything escaped that could mean something in a URL.
pub(crate) fn escaped(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for byte in part.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_stay_with_their_host() {
        let base = "http://host/api/workflows";
        for (to, carried) in [
            ("http://host/elsewhere", true),
            ("http://HOST/elsewhere", true),
            ("https://host/api/workflows", true),
            ("http://other/api/workflows", false),
            ("http://host.evil/api", false),
            ("http://host:81/api", false),
            ("https://host:8443/api", false),
            ("http://host@evil/api", false),
            ("ftp://host/api", false),
        ] {
            assert_eq!(may_carry_headers(base, to), carried, "{to}");
        }
        assert!(
            !may_carry_headers("https://host/api", "http://host/api"),
            "never to the less safe"
        );
    }

    #[test]
    fn redirects_are_resolved() {
        let to = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", location.parse().expect("a header"));
            redirect_target("http://host:1/api", &headers).ok()
        };
        assert_eq!(to("/new").as_deref(), Some("http://host:1/new"));
        assert_eq!(to("//other/new").as_deref(), Some("http://other/new"));
        assert_eq!(to("https://other/x").as_deref(), Some("https://other/x"));
        assert_eq!(to("file:///etc/passwd"), None);
    }

    #[test]
    fn parts_of_a_path_cannot_leave_it() {
        assert_eq!(escaped("order-1_x.~"), "order-1_x.~");
        assert_eq!(escaped("a/b?c#d e%ü"), "a%2Fb%3Fc%23d%20e%25%C3%BC");
    }

    #[test]
    fn refusals_say_what_and_where() {
        let text = r#"{"message":"params do not fit","code":"WORKFLOW_PARAMS_INVALID","issues":[{"path":"params.cents","message":"missing"}]}"#;
        let failure = refusal(StatusCode::BAD_REQUEST, text);
        assert_eq!(
            failure.to_string(),
            "error: params do not fit (WORKFLOW_PARAMS_INVALID)\n  params.cents: missing"
        );
        assert!(!failure.passing);
        let failure = refusal(StatusCode::BAD_GATEWAY, "<html>");
        assert_eq!(failure.to_string(), "error: the server answered 502 Bad Gateway");
        assert!(failure.passing);
    }
}
