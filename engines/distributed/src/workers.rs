//! Workers of a session: their addresses, the memory nodes near them, and which of them are available.

use crate::channels::Channels;
use crate::encrypted;
use crate::message::VERSION;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion_distributed::{GetWorkerInfoRequest, WorkerChannel, WorkerResolver};
use farpool_lock::{Mutex, RwLock};
use farpool_transport::Exposure;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Time limit for a worker to answer that it is available.
const ANSWER: Duration = Duration::from_secs(3);
/// Number of memory nodes near one worker, at most.
const NEAR_MAX: usize = 512;
/// Longest description that a worker may send, in bytes.
const INFO_BYTES_MAX: usize = 256 << 10;
/// Number of assigned tasks that are remembered for [`Workers::assigned`], at most.
const ASSIGNED_MAX: usize = 4_096;
/// Start of the description that a worker sends. The version follows, then the names of the memory nodes near the
/// worker.
const SPEAKS: &str = "farpool-distributed ";
const NEAR: &str = "; near ";

/// Address of a worker, `https://HOST:PORT` with certificates and `http://HOST:PORT` without, and optionally the memory
/// nodes near it, as in `http://HOST:PORT=one,two`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAddress {
    /// Address, `https://HOST:PORT` or `http://HOST:PORT`.
    pub url: Url,
    /// Names of memory nodes on the same host. `None` if those apply that the worker reports.
    pub near: Option<Vec<String>>,
}

impl FromStr for WorkerAddress {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<WorkerAddress, String> {
        let wanted =
            "https://HOST:PORT or https://HOST:PORT=NODE,NODE is permitted, and http:// without certificates";
        let (url, near) = match text.split_once('=') {
            Some((url, near)) => (url, Some(near)),
            None => (text, None),
        };
        let url =
            Url::parse(url).map_err(|error| format!("{url:?} is not an address ({error}): {wanted}"))?;
        if !["http", "https"].contains(&url.scheme())
            || url.host_str().is_none()
            || url.port_or_known_default().is_none()
        {
            return Err(format!("{url} is not an address of a worker: {wanted}"));
        }
        let near = near.map(|near| near.split(',').map(str::to_owned).collect::<Vec<_>>());
        if let Some(bad) = near.iter().flatten().find(|name| name.is_empty()) {
            return Err(format!("{bad:?} is not a name of a memory node: {wanted}"));
        }
        Ok(WorkerAddress { url, near })
    }
}

/// Task that was assigned to a worker, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Far table that it scans.
    pub table: String,
    /// Index of the task in its stage.
    pub task: usize,
    /// Row groups that it reads.
    pub groups: Vec<usize>,
    /// Number of these row groups that lie on a memory node near the worker.
    pub near: usize,
    /// Address of the worker.
    pub worker: Url,
}

/// Worker that is not available, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Address of the worker.
    pub worker: Url,
    /// Reason.
    pub why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} is left out: {}", self.worker, self.why)
    }
}

/// Workers of a session. Threads may share it; its locks are held for moments only.
pub struct Workers {
    known: Vec<WorkerAddress>,
    /// Workers that answered the last [`Workers::refresh`], with the memory nodes near them. Queries are planned for
    /// these workers.
    live: RwLock<Vec<Live>>,
    channels: Channels,
    assigned: Mutex<Vec<Assigned>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) url: Url,
    pub(crate) near: Vec<String>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Workers {
    /// Makes a list of these workers. None is used before [`Workers::refresh`] found it available.
    ///
    /// Workers must have the identity of this session, and `https` addresses, if there are certificates.
    ///
    /// Errors: an address on another machine without certificates, unless `exposure` permits plaintext; an address
    /// given twice.
    pub fn new(known: Vec<WorkerAddress>, exposure: Exposure) -> Result<Arc<Workers>> {
        for (place, worker) in known.iter().enumerate() {
            encrypted::check(&exposure, &worker.url)?;
            if known[..place].iter().any(|other| other.url == worker.url) {
                return exec_err!("worker {} is named twice", worker.url);
            }
        }
        Ok(Arc::new(Workers {
            known,
            live: RwLock::default(),
            channels: Channels::new(exposure),
            assigned: Mutex::default(),
        }))
    }

    /// Asks all workers whether they are available. Queries planned from now on use those that are; if there are none,
    /// queries run in this process. Returns the workers that are left out.
    pub async fn refresh(&self) -> Vec<LeftOut> {
        let asked = self.known.iter().map(|worker| self.ask(worker));
        let mut left_out = Vec::new();
        let mut live = Vec::new();
        for (worker, answer) in self.known.iter().zip(futures::future::join_all(asked).await) {
            match answer {
                Ok(near) => live.push(Live { url: worker.url.clone(), near }),
                Err(error) => {
                    left_out.push(LeftOut { worker: worker.url.clone(), why: error.strip_backtrace() })
                }
            }
        }
        self.channels.set_peers(live.iter().map(|worker| worker.url.clone()));
        *self.live.write() = live;
        self.assigned.lock().clear();
        left_out
    }

    /// Asks a worker whether it is available. Returns the memory nodes near it.
    async fn ask(&self, worker: &WorkerAddress) -> Result<Vec<String>> {
        let mut channel = self.channels.worker(&worker.url)?;
        let answer = tokio::time::timeout(ANSWER, channel.get_worker_info(GetWorkerInfoRequest {})).await;
        let answer = answer
            .map_err(|_| exec_datafusion_err!("it does not answer within {} s", ANSWER.as_secs()))??;
        let told = read_info(&answer.version)?;
        Ok(worker.near.clone().unwrap_or(told))
    }

    /// Returns the workers that answered the last [`Workers::refresh`].
    pub fn live(&self) -> Vec<Url> {
        self.live_now().into_iter().map(|worker| worker.url).collect()
    }

    pub(crate) fn live_now(&self) -> Vec<Live> {
        self.live.read().clone()
    }

    /// Returns how often this session asked another worker for the rows of a task, because one was lost. Workers ask
    /// each other as well, and write it to their logs.
    pub fn failed_over(&self) -> u64 {
        self.channels.failed_over()
    }

    /// Returns how often this session asked another worker for the rows of a task as well, because one took long.
    pub fn hedged(&self) -> u64 {
        self.channels.hedged()
    }

    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    pub(crate) fn note(&self, assigned: impl IntoIterator<Item = Assigned>) {
        let mut all = self.assigned.lock();
        for one in assigned {
            if all.len() < ASSIGNED_MAX {
                all.push(one);
            }
        }
    }

    /// Returns the tasks with scans of far tables that were assigned since the last [`Workers::refresh`].
    pub fn assigned(&self) -> Vec<Assigned> {
        self.assigned.lock().clone()
    }
}

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.live())
    }
}

/// Returns the description that a worker sends.
pub(crate) fn info(near: &[String]) -> String {
    match near {
        [] => format!("{SPEAKS}{VERSION}"),
        _ => format!("{SPEAKS}{VERSION}{NEAR}{}", near.join(",")),
    }
}

/// Parses the description of a worker, which is untrusted. Returns the memory nodes near it.
fn read_info(info: &str) -> Result<Vec<String>> {
    if info.len() > INFO_BYTES_MAX {
        return exec_err!("its description has {} bytes: at most {INFO_BYTES_MAX} are permitted", info.len());
    }
    let Some(said) = info.strip_prefix(SPEAKS) else {
        return exec_err!("it is not a farpool-sql worker");
    };
    let (version, near) = match said.split_once(NEAR) {
        Some((version, near)) => (version, near),
        None => (said, ""),
    };
    if version.parse() != Ok(VERSION) {
        let version: String = farpool::shown(version).to_string().chars().take(16).collect();
        return exec_err!(
            "version mismatch: this side speaks version {VERSION} of farpool-distributed, the other side {version}; \
             run the same farpool-sql on both"
        );
    }
    let near: Vec<String> = near.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if near.len() > NEAR_MAX {
        return exec_err!("it is near {} memory nodes: at most {NEAR_MAX} are permitted", near.len());
    }
    Ok(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_maybe_what_is_near() {
        let read = |text: &str| text.parse::<WorkerAddress>();
        let plain = read("http://127.0.0.1:7801").expect("an address");
        assert_eq!((plain.url.as_str(), plain.near), ("http://127.0.0.1:7801/", None));
        let near = read("http://[::1]:7801=one,two").expect("an address").near;
        assert_eq!(near, Some(vec!["one".to_owned(), "two".to_owned()]));
        for bad in
            ["", "7801", "127.0.0.1:7801", "ftp://127.0.0.1:1", "http://127.0.0.1:1=", "http://a:1=one,,two"]
        {
            let why = read(bad).expect_err(bad);
            assert!(why.contains("is permitted"), "{bad}: {why}");
        }
    }

    #[test]
    fn a_worker_beyond_this_machine_is_refused_unless_permitted() {
        for (url, is_here) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://localhost:1", true),
            ("http://10.0.0.1:1", false),
            ("http://example.org:1", false),
            ("http://localhost.example.org:1", false),
        ] {
            let worker = || vec![url.parse::<WorkerAddress>().expect("an address")];
            assert_eq!(Workers::new(worker(), Exposure::default()).is_ok(), is_here, "{url}");
            let plaintext = Exposure { tls: None, plaintext: true };
            assert!(Workers::new(worker(), plaintext).is_ok(), "{url}");
        }
    }

    #[test]
    fn what_a_worker_says_of_itself_is_checked() {
        assert_eq!(read_info(&info(&[])).expect("read"), Vec::<String>::new());
        let near = ["one".to_owned(), "two".to_owned()];
        assert_eq!(read_info(&info(&near)).expect("read"), near);
        for (said, part) in [
            ("", "not a farpool-sql worker"),
            ("farpool-distributed 1", "speaks version 3 of farpool-distributed, the other side 1"),
            ("farpool-distributed 1; near one", "speaks version 3 of farpool-distributed, the other side 1"),
            ("farpool-distributed \u{7}x", "the other side \\u{7}x"),
        ] {
            let why = read_info(said).expect_err(said).strip_backtrace();
            assert!(why.contains(part), "{said}: {why}");
        }
        let many = vec!["node".to_owned(); NEAR_MAX + 1];
        assert!(read_info(&info(&many)).is_err());
    }
}
