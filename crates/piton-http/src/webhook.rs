//! A handler that delivers hooks by HTTP, to hosts that were allowed beforehand and to nobody else.
//!
//! A payload may come from a stranger, and so may the address in it: **no address is connected to before it was
//! checked, and the address that was checked is the one that is connected to.** So a name cannot be turned into an
//! address of the inner network between two looks, and a redirect leads nowhere.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use piton::hooks::{HookContext, HookHandler};
use piton::runtime::BoxFuture;
use piton::{Error, IntoSpan, Json, Result, Span, Timestamp};
use serde_json::value::RawValue;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Bytes of a request's body when nobody says.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// Delivers a hook by `POST`, signed, to a host that is allowed.
///
/// The body is `{"id", "name", "attempt", "createdAt", "payload"}`; the id comes as `Idempotency-Key` too. Any 2xx is a
/// delivery; anything else is a failed attempt, and the hook's retry policy decides. Nothing of the answer but its
/// status is read.
///
/// ```no_run
/// use piton::hooks::Hooks;
/// use piton_http::Webhook;
///
/// # fn main() -> piton::Result<()> {
/// let deliver = Webhook::to("https://hooks.example/piton", "sixteen bytes or more")?
///     .allow_host("hooks.example")
///     .timeout("10 seconds")?;
/// let hooks = Hooks::new().handler("order.paid", deliver);
/// # let _ = hooks;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Webhook(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    target: Target,
    secret: Vec<u8>,
    allowed: Vec<Allowed>,
    timeout: Span,
    body_bytes_max: usize,
    plain_http: bool,
    inner_network: bool,
    /// What was said that cannot be meant; the first thing that can fail does so with it.
    wrong: Option<String>,
}

#[derive(Clone)]
enum Target {
    Url(Uri),
    /// A JSON pointer into the payload.
    Pointer(String),
}

/// A host that may be delivered to.
#[derive(Clone, Debug)]
struct Allowed {
    /// `*.` before it stands for every name below.
    host: String,
    /// `None` is the port of the scheme: 443, or 80 without TLS.
    port: Option<u16>,
}

impl Allowed {
    fn new(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        // What is behind the last colon of an address in brackets may belong to it.
        let port =
            text.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        match port.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
            Some((host, port)) => Self { host: host.to_owned(), port: Some(port) },
            None => Self { host: text, port: None },
        }
    }

    /// Whether an address can have such a host.
    fn is_host(&self) -> bool {
        let host = self.host.strip_prefix("*.").unwrap_or(&self.host);
        let address: Option<Uri> = format!("https://{host}").parse().ok();
        !host.contains('*') && address.is_some_and(|address| address.host() == Some(host))
    }

    fn allows(&self, host: &str, port: u16, port_of_scheme: u16) -> bool {
        let same_host = match self.host.strip_prefix("*.") {
            Some(parent) => host.strip_suffix(parent).is_some_and(|below| below.ends_with('.')),
            None => self.host == host,
        };
        same_host && port == self.port.unwrap_or(port_of_scheme)
    }
}

impl Webhook {
    /// Delivers to this address, signed with this secret.
    ///
    /// # Errors
    ///
    /// If it is no address of the web, or the secret is shorter than 16 bytes.
    pub fn to(url: impl Into<String>, secret: impl AsRef<[u8]>) -> Result<Self> {
        let url = parse_address(&url.into()).map_err(Error::non_retryable)?;
        Self::new(Target::Url(url), secret.as_ref())
    }

    /// Delivers to the address that the payload has at this JSON pointer, such as `/callbackUrl`.
    ///
    /// # Errors
    ///
    /// If the secret is shorter than 16 bytes.
    pub fn to_address_at(pointer: impl Into<String>, secret: impl AsRef<[u8]>) -> Result<Self> {
        Self::new(Target::Pointer(pointer.into()), secret.as_ref())
    }

    fn new(target: Target, secret: &[u8]) -> Result<Self> {
        if secret.len() < 16 {
            return Err(Error::non_retryable("the secret of a webhook needs at least 16 bytes"));
        }
        Ok(Self(Arc::new(Settings {
            target,
            secret: secret.to_vec(),
            allowed: Vec::new(),
            timeout: Span::from_millis(10_000),
            body_bytes_max: BODY_BYTES_MAX,
            plain_http: false,
            inner_network: false,
            wrong: None,
        })))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Allows a host: `hooks.example`, or `*.example` for every name below. Without one nothing is delivered.
    ///
    /// Only the port of the scheme is allowed, 443, or 80 without TLS; another one is named: `hooks.example:8443`.
    ///
    /// What is not a host (`https://hooks.example`) makes [`timeout`](Self::timeout) and every delivery fail.
    #[must_use]
    pub fn allow_host(self, host: impl AsRef<str>) -> Self {
        let host = host.as_ref();
        let allowed = Allowed::new(host);
        if !allowed.is_host() {
            let message = format!(
                "allow_host({host:?}) names no host: write it like \"hooks.example\", \"*.example\" or \"127.0.0.1:8443\""
            );
            return self.with(|settings| {
                settings.wrong.get_or_insert(message);
            });
        }
        self.with(|settings| settings.allowed.push(allowed))
    }

    /// How long one delivery may take. Default 10 seconds. Shorter than the timeout of the hooks it handles.
    ///
    /// # Errors
    ///
    /// If it is not a duration, or an allowed host is none.
    pub fn timeout(self, timeout: impl IntoSpan) -> Result<Self> {
        if let Some(wrong) = &self.0.wrong {
            return Err(Error::non_retryable(wrong.as_str()));
        }
        let timeout = timeout.into_span()?;
        Ok(self.with(|settings| settings.timeout = timeout))
    }

    /// How large a body may be; a hook with a larger one fails for good. Default 256 KiB.
    #[must_use]
    pub fn body_bytes_max(self, bytes: usize) -> Self {
        self.with(|settings| settings.body_bytes_max = bytes)
    }

    /// Also delivers without TLS: for a receiver on the same machine, and for tests.
    #[must_use]
    pub fn allow_plain_http(self) -> Self {
        self.with(|settings| settings.plain_http = true)
    }

    /// Also delivers to loopback, private and link-local addresses. The allowed hosts are then all that protects the
    /// inner network.
    #[must_use]
    pub fn allow_inner_network(self) -> Self {
        self.with(|settings| settings.inner_network = true)
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("allowed", &self.0.allowed).finish_non_exhaustive()
    }
}

impl HookHandler for Webhook {
    fn handle(&self, payload: Json, context: HookContext) -> BoxFuture<Result<()>> {
        let settings = Arc::clone(&self.0);
        Box::pin(async move {
            let delivery = Delivery::new(&settings, &payload, &context)?;
            let sending = tokio::task::spawn_blocking(move || delivery.send(&settings));
            sending.await.map_err(Error::wrap)?
        })
    }
}

/// What goes over the wire.
struct Delivery {
    url: Uri,
    body: String,
    id: String,
    name: String,
    signature: String,
}

impl Delivery {
    fn new(settings: &Settings, payload: &Json, context: &HookContext) -> Result<Self> {
        let url = settings.address(payload)?;
        let raw: &RawValue = serde_json::from_str(payload.as_str())?;
        let body = serde_json::to_string(&Envelope {
            id: context.id(),
            name: context.name(),
            attempt: context.attempt(),
            created_at: context.created_at().to_string(),
            payload: raw,
        })?;
        let (bytes, max) = (body.len(), settings.body_bytes_max);
        if bytes > max {
            let message = format!("a body of {bytes} bytes is larger than {max} (body_bytes_max)");
            return Err(Error::non_retryable(message).named("WebhookTooLarge"));
        }
        let seconds = context.attempted_at().as_millis() / 1_000;
        let signature =
            format!("t={seconds},v1={}", signature(&settings.secret, seconds, body.as_bytes()));
        let (id, name) = (context.id().to_owned(), context.name().to_owned());
        Ok(Self { url, body, id, name, signature })
    }

    fn send(self, settings: &Settings) -> Result<()> {
        let ms = u64::try_from(settings.timeout.as_millis()).unwrap_or(0).max(1);
        let config = Config::builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_millis(ms)))
            .proxy(None)
            .https_only(!settings.plain_http)
            .build();
        let resolver = Checked { inner_network: settings.inner_network };
        let agent = ureq::Agent::with_parts(config, DefaultConnector::default(), resolver);
        let sent = agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("user-agent", concat!("piton/", env!("CARGO_PKG_VERSION")))
            .header("idempotency-key", &self.id)
            .header("piton-hook-name", &self.name)
            .header("piton-signature", &self.signature)
            .send(self.body.as_bytes());
        let status = match sent {
            Ok(response) => response.status(),
            Err(error) => {
                let message = undelivered(&self.url, settings.timeout, &error);
                return Err(Error::new(message).named("WebhookFailed"));
            }
        };
        if status.is_success() {
            return Ok(());
        }
        Err(Error::new(format!("the receiver answered {status}")).named("WebhookRefused"))
    }
}

/// Why there was no answer, and from whom. No more of the address than that: the rest may be a secret.
#[expect(clippy::wildcard_enum_match_arm, reason = "the client's own, open-ended set")]
fn undelivered(url: &Uri, timeout: Span, error: &ureq::Error) -> String {
    let receiver = receiver(url);
    match error {
        ureq::Error::Other(why) => format!("{receiver}: {why}"),
        ureq::Error::Timeout(_) => format!("no answer from {receiver} within {timeout}"),
        ureq::Error::Io(why) => format!("{receiver} cannot be reached: {why}"),
        other => format!("{receiver} cannot be reached: {other}"),
    }
}

/// Host and port, as an address has them.
fn receiver(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port_u16().map_or(host.to_owned(), |port| format!("{host}:{port}"))
}

/// An address with a scheme of the web and a host, or what is expected instead.
fn parse_address(text: &str) -> std::result::Result<Uri, String> {
    let parsed: Option<Uri> = text.parse().ok();
    let is_of_the_web = |url: &Uri| {
        matches!(url.scheme_str(), Some("http" | "https"))
            && url.host().is_some_and(|host| !host.is_empty())
    };
    parsed.filter(is_of_the_web).ok_or_else(|| {
        let shown: String = text.chars().take(100).collect();
        format!("{shown:?} is not an address such as https://hooks.example/in")
    })
}

/// The body of a delivery.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    id: &'a str,
    name: &'a str,
    attempt: u32,
    created_at: String,
    payload: &'a RawValue,
}

/// What the receiver computes too: the HMAC-SHA256 of `{seconds}.{body}` under the secret, in hexadecimal. It comes in
/// the header `Piton-Signature: t={seconds},v1={signature}`; one whose time is long past is an old delivery, played
/// again by somebody else.
///
/// A receiver in Rust calls [`verify`], which checks all of it.
pub fn signature(secret: &[u8], seconds: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length can be used");
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For receivers: whether a delivery with this `Piton-Signature` and this body comes from somebody who knows the secret,
/// and was signed no longer than `tolerance` before or after `now`. The time it takes tells nothing of the signature.
///
/// ```
/// use piton::{Span, Timestamp};
/// use piton_http::{signature, verify};
///
/// let header = format!("t=100,v1={}", signature(b"a long secret", 100, b"{}"));
/// let (now, tolerance) = (Timestamp::from_millis(160_000), Span::from_millis(300_000));
/// assert!(verify(b"a long secret", &header, b"{}", now, tolerance));
/// assert!(!verify(b"another secret", &header, b"{}", now, tolerance));
/// ```
pub fn verify(secret: &[u8], header: &str, body: &[u8], now: Timestamp, tolerance: Span) -> bool {
    let part = |name: &str| {
        let mut parts = header.split(',').filter_map(|part| part.trim().split_once('='));
        parts.find_map(|(known, value)| (known == name).then_some(value))
    };
    let seconds: Option<i64> = part("t").and_then(|seconds| seconds.parse().ok());
    let (Some(seconds), Some(given)) = (seconds, part("v1")) else { return false };
    let age_ms = now.as_millis().abs_diff(seconds.saturating_mul(1_000));
    if age_ms > u64::try_from(tolerance.as_millis()).unwrap_or(0) {
        return false;
    }
    signature(secret, seconds, body).as_bytes().ct_eq(given.as_bytes()).into()
}

impl Settings {
    /// Where to deliver, if that is allowed.
    fn address(&self, payload: &Json) -> Result<Uri> {
        let forbidden = |why: String| Error::non_retryable(why).named("WebhookForbidden");
        if let Some(wrong) = &self.wrong {
            return Err(forbidden(wrong.clone()));
        }
        let url = match &self.target {
            Target::Url(url) => url.clone(),
            Target::Pointer(pointer) => {
                let value: serde_json::Value = serde_json::from_str(payload.as_str())?;
                let found = value.pointer(pointer).and_then(serde_json::Value::as_str);
                let text = found
                    .ok_or_else(|| forbidden(format!("the payload has no address at {pointer}")))?;
                let parsed = parse_address(text);
                parsed.map_err(|why| forbidden(format!("the payload at {pointer}: {why}")))?
            }
        };
        let (host, named) = (url.host().unwrap_or_default().to_ascii_lowercase(), receiver(&url));
        let port_of_scheme = match url.scheme_str() {
            Some("https") => 443,
            _ if self.plain_http => 80,
            _ => {
                let why = format!("{named} is http without TLS: use https, or allow_plain_http()");
                return Err(forbidden(why));
            }
        };
        let port = url.port_u16().unwrap_or(port_of_scheme);
        if !self.allowed.iter().any(|allowed| allowed.allows(&host, port, port_of_scheme)) {
            let why = format!("{named} is not allowed: name it with allow_host({named:?})");
            return Err(forbidden(why));
        }
        Ok(url)
    }
}

/// Resolves names, and refuses those that lead into the inner network.
#[derive(Debug)]
struct Checked {
    inner_network: bool,
}

impl Resolver for Checked {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        let inner = found.iter().map(std::net::SocketAddr::ip).find(|ip| !is_public(*ip));
        match inner {
            // One is enough: a name that also has a public address is no better for it.
            Some(ip) if !self.inner_network => {
                let why =
                    format!("{ip} is not a public address: allow it with allow_inner_network()");
                Err(ureq::Error::Other(why.into()))
            }
            Some(_) | None => Ok(found),
        }
    }
}

/// Whether an address is one of the open internet.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || matches!((a, b, c), (0 | 240..=255, _, _) | (192, 0, 0) | (198, 18..=19, _));
    // Addresses that a provider shares among its customers.
    let shared = a == 100 && (64..=127).contains(&b);
    !special && !shared
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let embedded = |high: u16, low: u16| {
        let ([x, y], [z, w]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(x, y, z, w))
    };
    match (a, b) {
        // Mapped and compatible ones, and those behind a translator, are what they hold.
        (0, 0) if (c, d, e) == (0, 0, 0) && (f == 0 || f == 0xffff) => embedded(g, h),
        // The prefix for translators inside a network, and tunnels (Teredo) that hide where they lead.
        (0x64, 0xff9b) if c == 1 => false,
        (0x2001, 0) => false,
        (0x64, 0xff9b) => embedded(g, h),
        (0x2002, high) => embedded(high, c),
        (0x2001, 0xdb8) => false,
        // Global unicast is all there is in the open.
        _ => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_open_internet_are_public() {
        for public in ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
        for inner in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::808:808",
            "2001::4136:e378:8000:63bf:3fff:fdd2",
            "2002:7f00:1::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "2001:db8::1",
        ] {
            assert!(!is_public(inner.parse().expect("an address")), "{inner}");
        }
    }

    #[test]
    fn hosts_are_allowed_by_name_or_below_a_name() {
        let allows = |allowed, host| Allowed::new(allowed).allows(host, 443, 443);
        assert!(allows("hooks.example", "hooks.example"));
        assert!(allows("*.example", "hooks.example") && allows("*.example", "a.b.example"));
        for (allowed, host) in [
            ("hooks.example", "evil-hooks.example"),
            ("hooks.example", "hooks.example.evil"),
            ("*.example", "example"),
            ("*.example", "evilexample"),
            ("*.example", ".example.evil"),
        ] {
            assert!(!allows(allowed, host), "{allowed} {host}");
        }
        assert!(!Allowed::new("hooks.example").allows("hooks.example", 8443, 443));
        for allowed in ["Hooks.Example:8443", "*.example:8443"] {
            assert!(Allowed::new(allowed).allows("hooks.example", 8443, 443));
            assert!(!Allowed::new(allowed).allows("hooks.example", 443, 443));
        }
        assert!(Allowed::new("[::1]:8443").allows("[::1]", 8443, 443));
        assert!(Allowed::new("[::1]").allows("[::1]", 443, 443));
    }

    #[test]
    fn what_is_no_host_is_told_before_anything_is_delivered() {
        for host in ["hooks.example", "*.example:8443", "localhost", "127.0.0.1:99", "[::1]:99"] {
            assert!(Allowed::new(host).is_host(), "{host}");
        }
        for wrong in [
            "",
            "*",
            "*.",
            "a.*",
            "a b",
            "::1",
            "hooks.example/in",
            "hooks.example:x",
            "hooks.example:99999",
            "ada@hooks.example",
            "http://127.0.0.1:9911",
        ] {
            assert!(!Allowed::new(wrong).is_host(), "{wrong}");
        }
    }

    #[test]
    fn a_receiver_believes_only_what_is_signed_and_new() {
        let (secret, body) = (b"a long secret", b"{}");
        let valid = signature(secret, 1_000, body);
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        let holds = |header: &str, body: &[u8], now: i64| {
            verify(secret, header, body, at(now), Span::from_millis(300_000))
        };
        let header = format!("t=1000,v1={valid}");
        assert!(holds(&header, body, 1_000) && holds(&header, body, 1_300));
        assert!(holds(&header, body, 700), "clocks differ");
        assert!(!holds(&header, body, 1_301) && !holds(&header, body, 699));
        assert!(!holds(&header, b"[]", 1_000));
        assert!(!holds(&format!("t=1001,v1={valid}"), body, 1_000));
        for wrong in
            ["", "t=1000", "v1=00", "t=x,v1=00", "t=1000,v1=", "t=9223372036854775807,v1=0"]
        {
            assert!(!holds(wrong, body, 1_000), "{wrong}");
        }
    }

    #[test]
    fn the_signature_is_hmac_sha256() {
        // RFC 4231, test case 2, whose data happens to be "what do ya want for nothing?".
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").expect("a key");
        mac.update(b"what do ya want for nothing?");
        let hex: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_ne!(signature(b"Jefe", 1, b"body"), signature(b"Jefe", 2, b"body"));
        assert_ne!(signature(b"Jefe", 1, b"body"), signature(b"jefe", 1, b"body"));
    }
}
