//! The server: it answers requests for metrics, health and state, on threads of its own.

use crate::accept::preferred;
use crate::access::{Access, AccessError, Denied};
use crate::http::{
    HEAD_MS_MAX, IDLE_MS_MAX, Method, NoRequest, Request, Requests, Response, Status, linger, send,
};
use crate::process::measure_process;
use crate::scrape::Scrape;
use farpool_host::{Event, Host, Machine};
use farpool_transport::socket::Stream;
use farpool_transport::tcp::{Listening, listen_for_streams};
use farpool_transport::{Identity, Tls};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Connections that are open at a time. A scraper needs one.
const CONNECTIONS_MAX: usize = 16;
/// Paths that need no proof: whoever restarts processes has no certificate, and learns one word.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];
/// Beginning of the paths of resources.
const API: &str = "/api/v1/";

/// Process of a pool that can be looked at.
pub trait Monitored: Send + Sync + 'static {
    /// Returns the name of the program, such as `node`.
    fn program(&self) -> &'static str;
    /// Adds the samples of all that this process knows. Those of the process itself are added by the server.
    fn measure(&self, into: &mut Scrape);
    /// Returns whether the process can do its work, and a sentence about it.
    fn readiness(&self) -> Readiness;
    /// Returns a resource of the API by its name, which is what follows `/api/v1/`.
    fn resource(&self, name: &str, query: &BTreeMap<String, String>) -> Resource;
    /// Returns the names of the resources.
    fn resources(&self) -> &'static [&'static str];
}

/// Ability of a process to do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready(String),
    /// It cannot yet, or not any more.
    NotReady(String),
}

/// Answer about a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Resource {
    /// The resource.
    Found(Value),
    /// The query is wrong; the text says what is permitted.
    WrongQuery(String),
    /// The process cannot say now; the text says why.
    Unavailable(String),
}

/// Reason why an address is not served.
#[derive(Debug)]
pub enum HttpError {
    /// The endpoint would not be protected as it must be.
    Access(AccessError),
    /// The address cannot be bound.
    Bind(SocketAddr, io::Error),
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpError::Access(error) => write!(f, "{error}"),
            HttpError::Bind(address, error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{address} is in use by another process; choose another port, or 0 for a free one")
            }
            HttpError::Bind(address, error) => write!(f, "cannot serve on {address}: {error}"),
        }
    }
}

impl std::error::Error for HttpError {}

/// Address that is bound and not served yet. Connections wait until it is.
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
    tls: Option<Tls>,
}

/// Running server. Dropping it ends its connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _listening: Listening,
}

impl Endpoint {
    /// Binds an address; port 0 picks a free port. `tls` are the certificates of the process, if it has any.
    pub fn bind(address: SocketAddr, access: Access, tls: Option<Tls>) -> Result<Endpoint, HttpError> {
        access.check(address).map_err(HttpError::Access)?;
        let bind = |error| HttpError::Bind(address, error);
        let listener = TcpListener::bind(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Endpoint { listener, address, access, tls })
    }

    /// Returns the address, with the port that was picked.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to answer.
    pub fn serve(self, monitored: Arc<dyn Monitored>) -> io::Result<Server> {
        let Endpoint { listener, address, access, tls } = self;
        let encryption = access.tls(address);
        let answerer = Answerer { monitored, access, address, tls };
        let serve = move |mut stream: Box<dyn Stream>, identity: Option<Identity>| {
            // A thread that spins would take CPU time from the data path.
            stream.never_spin();
            answerer.serve(&mut *stream, identity.as_ref());
        };
        let listening = listen_for_streams(listener, encryption, CONNECTIONS_MAX, serve)?;
        Ok(Server { address, _listening: listening })
    }
}

impl Server {
    /// Returns the address it serves on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Answerer {
    monitored: Arc<dyn Monitored>,
    access: Access,
    address: SocketAddr,
    tls: Option<Tls>,
}

impl Answerer {
    /// Answers the requests of one connection until it ends.
    fn serve(&self, stream: &mut dyn Stream, identity: Option<&Identity>) {
        let mut requests = Requests::new();
        // A connection that proves nothing is not kept waiting for long.
        let mut idle_ms = HEAD_MS_MAX;
        loop {
            let request = match requests.next(stream, idle_ms) {
                Ok(request) => request,
                Err(NoRequest::Ended) => return,
                Err(NoRequest::Refused(status, why)) => {
                    let response = Response::text(status, why);
                    if send(stream, &response, &Method::Get, false).is_ok() {
                        linger(stream);
                    }
                    return;
                }
            };
            let response = self.answer(&request, identity);
            let is_denied = matches!(response.status, Status::Unauthorized | Status::Forbidden);
            let is_kept = request.is_kept && !is_denied;
            if send(stream, &response, &request.method, is_kept).is_err() {
                return;
            }
            if !is_kept {
                linger(stream);
                return;
            }
            idle_ms = IDLE_MS_MAX;
        }
    }

    fn answer(&self, request: &Request, identity: Option<&Identity>) -> Response {
        let path = request.path.as_str();
        if !OPEN_PATHS.contains(&path) {
            let authorization = request.authorization.as_deref();
            if let Err(denied) = self.access.admits(self.address, identity, authorization) {
                return self.deny(denied, path);
            }
        }
        let monitored = &*self.monitored;
        let name = path.strip_prefix(API).filter(|name| monitored.resources().contains(name));
        if name.is_none() && !["/metrics", "/healthz", "/readyz"].contains(&path) {
            let resources: Vec<String> =
                monitored.resources().iter().map(|name| format!("{API}{name}")).collect();
            let paths = format!("/metrics, /healthz, /readyz, {}", resources.join(", "));
            let why = format!("this {} has no {path:?}; it has {paths}", monitored.program());
            return if path.starts_with("/api/") {
                problem(Status::NotFound, &why)
            } else {
                Response::text(Status::NotFound, why)
            };
        }
        if request.method == Method::Other {
            return Response::text(Status::MethodNotAllowed, "GET and HEAD are permitted");
        }
        match (name, path) {
            (Some(name), _) => self.resource(name, &request.query),
            (None, "/healthz") => Response::text(Status::Ok, "ok"),
            (None, "/readyz") => match monitored.readiness() {
                Readiness::Ready(why) => Response::text(Status::Ok, why),
                Readiness::NotReady(why) => Response::text(Status::Unavailable, why),
            },
            (None, _) => {
                let format = preferred(request.accepts.iter().map(String::as_str));
                let mut scrape = Scrape::default();
                measure_process(monitored.program(), self.tls.as_ref(), &mut scrape);
                monitored.measure(&mut scrape);
                Response { status: Status::Ok, media_type: format.media_type(), body: scrape.write(format) }
            }
        }
    }

    fn resource(&self, name: &str, query: &str) -> Response {
        let mut given = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            if given.insert(key.clone().into_owned(), value.into_owned()).is_some() {
                return problem(Status::BadRequest, &format!("the parameter {key:?} is given twice"));
            }
        }
        match self.monitored.resource(name, &given) {
            Resource::Found(value) => json(Status::Ok, &value),
            Resource::WrongQuery(why) => problem(Status::BadRequest, &why),
            Resource::Unavailable(why) => problem(Status::Unavailable, &why),
        }
    }

    fn deny(&self, denied: Denied, path: &str) -> Response {
        let advice = self.access.advice(denied);
        Machine.log(&Event::warn("scrape_refused", format!("a request for {path:?} was refused: {advice}")));
        let status = match denied {
            Denied::WrongCertificate => Status::Forbidden,
            Denied::Unproven | Denied::WrongToken => Status::Unauthorized,
        };
        if path.starts_with("/api/") { problem(status, &advice) } else { Response::text(status, advice) }
    }
}

fn json(status: Status, value: &Value) -> Response {
    Response { status, media_type: "application/json", body: format!("{value}\n") }
}

/// Returns an error of the API in JSON.
fn problem(status: Status, why: &str) -> Response {
    let (code, _) = status.line();
    json(status, &json!({ "error": { "status": code, "message": why } }))
}
