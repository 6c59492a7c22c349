//! Requests and responses of HTTP/1.1 (RFC 9112), as much as a scraper needs: GET and HEAD without a body.

use farpool_host::clock;
use farpool_transport::socket::{Interest, Stream, write_full};
use farpool_wire::MonoNs;
use std::fmt::Write;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::SystemTime;

/// Largest head of a request (request line and headers), in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Largest number of headers.
pub(crate) const HEADERS_MAX: usize = 64;
/// Largest request target, in bytes.
pub(crate) const TARGET_BYTES_MAX: usize = 2 << 10;
/// Milliseconds within which a peer sends the whole head of a request, once it has begun.
pub(crate) const HEAD_MS_MAX: u64 = 5_000;
/// Milliseconds for which a peer that has proved who it is may be idle between two requests.
pub(crate) const IDLE_MS_MAX: u64 = 60_000;
/// Milliseconds within which a peer receives a response.
const SEND_MS_MAX: u64 = 10_000;
/// Milliseconds and bytes for which a peer is listened to after an error, so that it can receive the response.
const LINGER_MS: u64 = 500;
const LINGER_BYTES_MAX: usize = 64 << 10;

/// Method of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Other,
}

/// Request whose head was received whole.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path of the target, as it was sent.
    pub(crate) path: String,
    /// Query of the target, as it was sent; empty without one.
    pub(crate) query: String,
    pub(crate) authorization: Option<Vec<u8>>,
    /// Values of the `Accept` headers.
    pub(crate) accepts: Vec<String>,
    /// True if the connection is used for further requests.
    pub(crate) is_kept: bool,
}

/// Status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    ContentTooLarge,
    UriTooLong,
    HeadTooLarge,
    Unavailable,
    VersionNotSupported,
}

impl Status {
    /// Returns the code and the reason phrase.
    pub(crate) fn line(self) -> (u16, &'static str) {
        match self {
            Status::Ok => (200, "OK"),
            Status::BadRequest => (400, "Bad Request"),
            Status::Unauthorized => (401, "Unauthorized"),
            Status::Forbidden => (403, "Forbidden"),
            Status::NotFound => (404, "Not Found"),
            Status::MethodNotAllowed => (405, "Method Not Allowed"),
            Status::RequestTimeout => (408, "Request Timeout"),
            Status::ContentTooLarge => (413, "Content Too Large"),
            Status::UriTooLong => (414, "URI Too Long"),
            Status::HeadTooLarge => (431, "Request Header Fields Too Large"),
            Status::Unavailable => (503, "Service Unavailable"),
            Status::VersionNotSupported => (505, "HTTP Version Not Supported"),
        }
    }
}

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: Status,
    pub(crate) media_type: &'static str,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn text(status: Status, body: impl Into<String>) -> Response {
        Response { status, media_type: "text/plain; charset=utf-8", body: body.into() + "\n" }
    }
}

/// Reason why there is no request.
#[derive(Debug)]
pub(crate) enum NoRequest {
    /// The connection has ended, or nothing was sent in time.
    Ended,
    /// The request is refused, and the connection ends.
    Refused(Status, String),
}

/// Receiver of requests, one after another.
pub(crate) struct Requests {
    /// Bytes that were received and belong to no request that was returned.
    buffer: Vec<u8>,
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests { buffer: Vec::with_capacity(HEAD_BYTES_MAX) }
    }

    /// Receives the head of the next request, whose first byte comes within `idle_ms`.
    pub(crate) fn next(&mut self, stream: &mut dyn Stream, idle_ms: u64) -> Result<Request, NoRequest> {
        let mut deadline = clock::now().plus_ms(if self.buffer.is_empty() { idle_ms } else { HEAD_MS_MAX });
        loop {
            if let Some((request, bytes)) = parse(&self.buffer)? {
                self.buffer.drain(..bytes);
                return Ok(request);
            }
            let mut more = [0; 2 << 10];
            match receive(stream, &mut more, deadline) {
                Ok(0) => return Err(NoRequest::Ended),
                Ok(count) => {
                    if self.buffer.is_empty() {
                        deadline = clock::now().plus_ms(HEAD_MS_MAX);
                    }
                    self.buffer.extend_from_slice(&more[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !self.buffer.is_empty() => {
                    let why = format!("the head of the request did not come within {HEAD_MS_MAX} ms");
                    return Err(NoRequest::Refused(Status::RequestTimeout, why));
                }
                Err(_) => return Err(NoRequest::Ended),
            }
        }
    }
}

/// Receives some bytes; 0 at the end of the connection.
fn receive(stream: &mut dyn Stream, into: &mut [u8], deadline: MonoNs) -> io::Result<usize> {
    loop {
        if clock::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.read(&mut [IoSliceMut::new(into)]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.wait(Interest::Readable, deadline)?
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Parses the head of a request. Returns it with its length, or `None` if part of it is missing.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, NoRequest> {
    let refused = |status, why: &str| Err(NoRequest::Refused(status, why.to_owned()));
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let known = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let length = match head.parse(known) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) if head.path.is_none() => {
            return refused(
                Status::UriTooLong,
                &format!("the target is longer than {TARGET_BYTES_MAX} bytes"),
            );
        }
        Ok(httparse::Status::Partial) => {
            let why = format!("the head of the request is longer than {HEAD_BYTES_MAX} bytes");
            return Err(NoRequest::Refused(Status::HeadTooLarge, why));
        }
        Err(httparse::Error::TooManyHeaders) => {
            let why = format!("the request has more than {HEADERS_MAX} headers");
            return Err(NoRequest::Refused(Status::HeadTooLarge, why));
        }
        Err(httparse::Error::Version) => {
            return refused(Status::VersionNotSupported, "HTTP/1.1 and HTTP/1.0 are spoken here");
        }
        Err(error) => return refused(Status::BadRequest, &format!("no request of HTTP/1.1: {error}")),
    };
    let (target, version) = (head.path.unwrap_or_default(), head.version.unwrap_or_default());
    if target.len() > TARGET_BYTES_MAX {
        return refused(Status::UriTooLong, &format!("the target is longer than {TARGET_BYTES_MAX} bytes"));
    }
    let values = |name: &'static str| {
        let named = head.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| header.value)
    };
    if version == 1 && values("host").count() != 1 {
        return refused(Status::BadRequest, "a request of HTTP/1.1 has exactly one Host header");
    }
    let has_body = values("content-length").any(|length| length.trim_ascii() != b"0");
    if has_body || values("transfer-encoding").next().is_some() {
        return refused(Status::ContentTooLarge, "requests have no body here");
    }
    if values("authorization").count() > 1 {
        return refused(Status::BadRequest, "a request has at most one Authorization header");
    }
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let says = |token: &str| {
        values("connection").any(|value| {
            value
                .split(|byte| *byte == b',')
                .any(|one| one.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    };
    // A target may have scheme and host in front, as proxies send it.
    let target = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => target,
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        method: match head.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        },
        path: path.to_owned(),
        query: query.to_owned(),
        authorization: values("authorization").next().map(<[u8]>::to_vec),
        accepts: values("accept").map(text).collect(),
        is_kept: version == 1 && !says("close"),
    };
    Ok(Some((request, length)))
}

/// Sends a response. The body is left out if the request was HEAD.
pub(crate) fn send(
    stream: &mut dyn Stream,
    response: &Response,
    method: &Method,
    is_kept: bool,
) -> io::Result<()> {
    let (code, reason) = response.status.line();
    let mut head = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        head,
        "HTTP/1.1 {code} {reason}\r\nDate: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n",
        httpdate::fmt_http_date(SystemTime::now()),
        response.media_type,
        response.body.len()
    );
    match response.status {
        Status::Unauthorized => head.push_str("WWW-Authenticate: Bearer realm=\"farpool\"\r\n"),
        Status::MethodNotAllowed => head.push_str("Allow: GET, HEAD\r\n"),
        _ => {}
    }
    head.push_str(if is_kept { "\r\n" } else { "Connection: close\r\n\r\n" });
    let body = if *method == Method::Head { "" } else { &response.body };
    let deadline = clock::now().plus_ms(SEND_MS_MAX);
    let mut parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body.as_bytes())];
    write_full(stream, &mut parts, deadline)
}

/// Receives what a refused peer still sends. Closing a connection with unread bytes would discard the response.
pub(crate) fn linger(stream: &mut dyn Stream) {
    let deadline = clock::now().plus_ms(LINGER_MS);
    let (mut last, mut total) = ([0; 4 << 10], 0);
    while total < LINGER_BYTES_MAX {
        match receive(stream, &mut last, deadline) {
            Ok(count @ 1..) => total += count,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status_of(bytes: &[u8]) -> u16 {
        match parse(bytes) {
            Err(NoRequest::Refused(status, why)) => {
                assert!(!why.is_empty());
                status.line().0
            }
            other => panic!("{other:?}"),
        }
    }

    fn request_of(text: &str) -> Request {
        let (request, length) = parse(text.as_bytes()).expect("a request").expect("whole");
        assert_eq!(length, text.len());
        request
    }

    #[test]
    fn request_is_read_with_what_it_says() {
        let request = request_of(
            "GET /api/v1/files?limit=3 HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\naccept: */*;q=0.1\r\n\
             Authorization: Bearer x\r\n\r\n",
        );
        assert_eq!((request.path.as_str(), request.query.as_str()), ("/api/v1/files", "limit=3"));
        assert_eq!((request.method, request.is_kept), (Method::Get, true));
        assert_eq!(request.accepts, ["text/plain", "*/*;q=0.1"]);
        assert_eq!(request.authorization.as_deref(), Some(&b"Bearer x"[..]));
        let absolute =
            request_of("HEAD http://a:1/metrics HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n");
        assert_eq!((absolute.path.as_str(), absolute.is_kept), ("/metrics", false));
        assert!(!request_of("GET / HTTP/1.0\r\n\r\n").is_kept);
        assert_eq!(request_of("GET http://a HTTP/1.0\r\n\r\n").path, "/");
    }

    #[test]
    fn part_of_a_request_waits_for_the_rest() {
        let whole = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..whole.len() {
            assert!(matches!(parse(&whole.as_bytes()[..end]), Ok(None)), "{end}");
        }
        let two = [whole, whole].concat();
        assert_eq!(parse(two.as_bytes()).expect("a request").expect("whole").1, whole.len());
    }

    #[test]
    fn request_that_is_none_or_too_large_is_refused_with_its_status() {
        let long = "a".repeat(HEAD_BYTES_MAX);
        let many = "x: y\r\n".repeat(HEADERS_MAX);
        for (text, status) in [
            ("\0\0\0\0".to_owned(), 400),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), 400),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"
                    .to_owned(),
                400,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n".to_owned(), 413),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 413),
            (format!("GET /{long} HTTP/1.1\r\n"), 414),
            (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(TARGET_BYTES_MAX)), 414),
            (format!("GET / HTTP/1.1\r\nHost: a\r\nx: {long}\r\n\r\n"), 431),
            (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431),
            ("GET / HTTP/2.0\r\n\r\n".to_owned(), 505),
        ] {
            assert_eq!(status_of(text.as_bytes()), status, "{}", &text[..text.len().min(60)]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_part_of_one_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
            let begun = [b"GET /metrics HTTP/1.1\r\nHost: a\r\n", &bytes[..]].concat();
            let _ = parse(&begun);
        }

        #[test]
        fn head_beyond_the_limit_is_never_waited_for(letter in any::<u8>()) {
            let bytes = [b"GET / HTTP/1.1\r\nHost: a\r\nx: ", &vec![letter; HEAD_BYTES_MAX][..]].concat();
            prop_assert!(!matches!(parse(&bytes), Ok(None)));
        }
    }
}
