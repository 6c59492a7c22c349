//! Pools as their users see them: files by name, and the state of the session.

use crate::broker::answer_of;
use crate::environment::pool_of_environment;
use crate::error::{Error, ErrorKind};
use crate::file::FarFile;
use crate::leases::Patience;
use crate::node_links::Repeat;
use crate::options::{CreateOptions, IfTaken, PoolOptions, Protection};
use crate::plan::{Group, PageKey};
use crate::recipe::Recipe;
use crate::sealed_map::{protection_of, sealed_map};
use crate::session::Session;
use crate::stats::Stats;
use farpool_host::Task;
use farpool_lock::{Mutex, MutexGuard};
use farpool_transport::relay::Relay;
use farpool_transport::times::OperationTime;
use farpool_transport::{Brokers, Dialer, Exposure, Link, LinkError, Sockets, Tls};
use farpool_wire::control::{
    ByName, Done, DrainNode, ListNames, NameInfo, NodeInfo, NodeMemory, Rename, RepairsListed, RunningCalls,
    StatusReport,
};
use farpool_wire::limits::NAME_BYTES_MAX;
use farpool_wire::{FileClass, FileId, Name, Request, Text};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Description of a file in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Name of the file.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Class of the file.
    pub class: FileClass,
    /// True if the file is published. Otherwise it is private to this session and ends with it.
    pub is_published: bool,
    /// True if a node that held some of its bytes is gone.
    pub is_lost: bool,
}

/// Session with a pool. Clones share the session. It ends with [`Pool::close`] or with the last clone.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    url: String,
    session: Arc<Session>,
    files: Mutex<BTreeMap<String, FarFile>>,
    next_number: AtomicU64,
    keeper: Mutex<Option<Task>>,
    /// Broker and nodes of a pool inside this process. They end after the session.
    embedded: Mutex<Option<Box<dyn Send>>>,
}

const SCHEME: &str = "farpool://";

/// Parses the address of a pool into its brokers.
fn brokers_of(url: &str) -> Result<Brokers, Error> {
    let invalid = |what: &str| {
        let message = format!(
            "invalid pool address {url:?}; use farpool://HOST:PORT, or farpool://HOST:PORT,HOST:PORT for several \
             brokers{what}"
        );
        Error::new(ErrorKind::Invalid, message)
    };
    let addresses = url.strip_prefix(SCHEME).ok_or_else(|| invalid(""))?.trim_end_matches('/');
    Brokers::new(addresses).map_err(|why| invalid(&format!(": {why}")))
}

impl Pool {
    /// Opens a session with the pool of the broker at `farpool://host:port`. Brokers that stand in for each other are
    /// separated by commas: `farpool://host:port,host:port`.
    pub fn connect(url: &str) -> Result<Pool, Error> {
        Pool::connect_with(url, PoolOptions::default())
    }

    /// Checks the address of a pool, and connects to nothing.
    pub fn check_url(url: &str) -> Result<(), Error> {
        brokers_of(url).map(drop)
    }

    /// Opens a session with settings.
    pub fn connect_with(url: &str, options: PoolOptions) -> Result<Pool, Error> {
        Pool::begin(Sockets::dialer(options.exposure()), url, options, None)
    }

    /// Opens a session with the pool that the environment names: its address is in `FARPOOL_POOL`. Certificates are
    /// those of `FARPOOL_CERTS` and so on, as for the command, unless the options have some. An error if there is no
    /// address.
    pub fn connect_from_environment(options: PoolOptions) -> Result<Pool, Error> {
        let (url, options) = pool_of_environment(options)?;
        Pool::connect_with(&url, options)
    }

    /// Opens a session on another host than this machine, such as one of the simulator.
    pub fn connect_from(host: Arc<dyn Dialer>, url: &str, options: PoolOptions) -> Result<Pool, Error> {
        Pool::begin(host, url, options, None)
    }

    /// Opens a session with the pool of a broker inside this process. `embedded` owns the broker and its nodes; it is
    /// dropped after the session has ended. Connections stay on loopback, whatever the options say.
    pub fn connect_embedded(url: &str, options: PoolOptions, embedded: Box<dyn Send>) -> Result<Pool, Error> {
        Pool::begin(Sockets::dialer(Exposure::default()), url, options, Some(embedded))
    }

    fn begin(
        host: Arc<dyn Dialer>,
        url: &str,
        options: PoolOptions,
        embedded: Option<Box<dyn Send>>,
    ) -> Result<Pool, Error> {
        let reserve_bytes = options.reserve_bytes;
        let session = Arc::new(Session::open(Arc::clone(&host), brokers_of(url)?, options)?);
        let kept = Arc::clone(&session);
        let keeper = host
            .spawn("farpool-keeper", Box::new(move || while kept.keep_alive() {}))
            .map_err(|error| Error::new(ErrorKind::Refused, format!("cannot start a thread: {error}")))?;
        let pool = Pool {
            inner: Arc::new(Inner {
                url: url.to_owned(),
                session,
                files: Mutex::default(),
                next_number: AtomicU64::new(1),
                keeper: Mutex::new(Some(keeper)),
                embedded: Mutex::new(embedded),
            }),
        };
        if reserve_bytes > 0 {
            pool.reserve(reserve_bytes)?;
        }
        Ok(pool)
    }

    /// Returns a number that no other file of this session has.
    pub(crate) fn next_number(&self) -> u64 {
        self.inner.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the protection of a new file.
    pub(crate) fn protection(
        &self,
        class: FileClass,
        asked: Option<Protection>,
    ) -> Result<Protection, Error> {
        self.inner.protection(class, asked)
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.inner.session
    }

    /// Returns the address of the pool: `farpool://host:port` of its broker or brokers.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Creates a file. It is private to this session until it is published.
    pub fn create(&self, name: &str, class: FileClass, options: CreateOptions) -> Result<FarFile, Error> {
        self.inner.check()?;
        Name::new(name).map_err(|_| {
            let message = format!(
                "invalid far file name {name:?}; use 1 to {NAME_BYTES_MAX} bytes without control characters"
            );
            Error::new(ErrorKind::Invalid, message)
        })?;
        let number = self.inner.next_number.fetch_add(1, Ordering::Relaxed);
        let protection = self.inner.protection(class, options.protection)?;
        let session = Arc::clone(&self.inner.session);
        let key = self.inner.key(class, options.encrypted)?;
        let patience = if options.is_optional { Patience::Brief } else { Patience::Full };
        let file = FarFile::create(session, name.to_owned(), class, number, protection, key, patience)
            .map_err(|error| error.during(format_args!("creating far file {name:?}")))?;
        {
            let mut files = self.inner.files();
            if files.contains_key(name) {
                return Err(Error::new(
                    ErrorKind::Exists,
                    format!("a far file named {name:?} exists already"),
                ));
            }
            files.insert(name.to_owned(), file.clone());
        }
        if options.size_hint > 0
            && let Err(error) = self.inner.session.leases.reserve(file.group(), options.size_hint)
        {
            self.inner.files().remove(name);
            return Err(error.during(format_args!("creating far file {name:?}")));
        }
        Ok(file)
    }

    /// Opens a file of this session, or a published one.
    pub fn open(&self, name: &str) -> Result<FarFile, Error> {
        self.inner.check()?;
        if let Some(file) = self.inner.files().get(name) {
            return Ok(file.clone());
        }
        let named = self.published_name(name)?;
        let session = &self.inner.session;
        let (opened, _) = session
            .open_or_rebuild(&named)
            .map_err(|error| error.during(format_args!("far file {name:?}")))?;
        let (map, stripes) = sealed_map(session, &named, &opened)?;
        let (protection, session) = (protection_of(&opened), Arc::clone(session));
        Ok(FarFile::published(session, name.to_owned(), opened.class, opened.file, protection, map, stripes))
    }

    /// Registers the function that rebuilds published files whose names begin with `prefix`, after a node has lost
    /// their bytes. `rebuild` is called with this pool and the name. It must publish, with [`IfTaken::Replace`], a file
    /// of that name with the same bytes. It is called when such a file is opened, or read by a handle opened earlier;
    /// the thread that needs the file waits for it. If two prefixes match, the one registered last wins.
    pub fn rebuild_with(
        &self,
        prefix: &str,
        rebuild: impl Fn(&Pool, &str) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        let pool = Arc::downgrade(&self.inner);
        let rebuild = move |name: &str| match pool.upgrade() {
            Some(inner) => rebuild(&Pool { inner }, name),
            None => Err(Error::new(ErrorKind::Closed, "the pool is closed")),
        };
        self.inner.session.rebuilding.add(prefix, Arc::new(rebuild));
    }

    /// Registers the function that makes lost files again by recipes of a kind. `make` is called with this pool, the
    /// name, the id of the lost file and its recipe, by a thread that opens the file. It must publish a file of that
    /// name with [`IfTaken::ReplaceOnly`] and the same recipe, whose rows and checksum it has compared, or change
    /// nothing.
    pub fn make_by_recipe(
        &self,
        kind: &str,
        make: impl Fn(&Pool, &str, FileId, &Recipe) -> Result<(), Error> + Send + Sync + 'static,
    ) {
        let pool = Arc::downgrade(&self.inner);
        let make = move |name: &str, file: FileId, recipe: &Recipe| match pool.upgrade() {
            Some(inner) => make(&Pool { inner }, name, file, recipe),
            None => Err(Error::new(ErrorKind::Closed, "the pool is closed")),
        };
        self.inner.session.rebuilding.add_maker(kind, Arc::new(make));
    }

    /// Returns the recipe of a published file, which may be lost. `None` if it has none.
    ///
    /// Errors: there is no such file.
    pub fn recipe(&self, name: &str) -> Result<Option<Recipe>, Error> {
        self.inner.check()?;
        let (session, named) = (&self.inner.session, self.published_name(name)?);
        let claimed = session.broker.claim_rebuild(session.leases.proof(), &named, true)?;
        (!claimed.recipe.is_empty()).then(|| Recipe::decode(&claimed.recipe)).transpose()
    }

    /// Reports whether the session has certificates.
    pub fn has_certificates(&self) -> bool {
        self.inner.session.options().tls.is_some()
    }

    /// Accepts connections at `listener` over mutual TLS, from sessions of this session's identity alone, and connects
    /// each to the Unix socket `behind`, where a server of another protocol listens.
    ///
    /// Errors: [`ErrorKind::Refused`] if the session has no certificates, or one that servers may not use.
    pub fn relay_to(&self, listener: TcpListener, behind: &Path) -> Result<Relay, Error> {
        let refused = |why: String| Error::new(ErrorKind::Refused, why);
        let tls = self.certificates()?;
        tls.check_serves().map_err(|error| refused(error.to_string()))?;
        Relay::serve(listener, tls, behind.to_owned())
            .map_err(|error| refused(format!("cannot listen: {error}")))
    }

    /// Listens on the Unix socket `before` and carries its connections over mutual TLS to `address`, `host:port` of
    /// [`Self::relay_to`] of a session that has this session's identity.
    ///
    /// Errors: [`ErrorKind::Refused`] if the session has no certificates, or the other side another identity;
    /// [`ErrorKind::Unreachable`] if it does not answer.
    pub fn relay_from(&self, before: &Path, address: &str) -> Result<Relay, Error> {
        let deadline = self.inner.session.request_deadline();
        Relay::connect(self.certificates()?, address, before, deadline).map_err(|error| {
            let kind = match &error {
                LinkError::Untrusted(_) => ErrorKind::Refused,
                _ => ErrorKind::Unreachable,
            };
            Error::new(kind, error.to_string())
        })
    }

    fn certificates(&self) -> Result<&Tls, Error> {
        let missing = "the session has no certificates: connect with certs, or with ca, cert and key";
        let tls = self.inner.session.options().tls.as_ref();
        tls.ok_or_else(|| Error::new(ErrorKind::Refused, missing))
    }

    fn node_called(&self, name: &str) -> Result<NodeInfo, Error> {
        let node =
            self.status()?.nodes.iter().find(|node| &*node.info.name == name).map(|node| node.info.clone());
        node.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no node {name:?} in the pool")))
    }

    /// Asks a node which calls of functions are running there. A caller with a certificate that is not the
    /// administrator's sees only its own calls.
    pub fn running_calls(&self, node: &str) -> Result<RunningCalls, Error> {
        self.inner.check()?;
        let session = &self.inner.session;
        let links = session.leases.links(&self.node_called(node)?)?;
        let deadline = session.request_deadline();
        let ask = |link: &mut dyn Link| link.call(&Request::RunningCalls(Done {}), deadline);
        answer_of!(links.converse(deadline, Repeat::Harmless, ask)?, RunningCalls)
    }

    /// Orders a node to drain: it grants nothing more, sessions move their data elsewhere, and other nodes copy its
    /// published files, which keep their names. Or takes a node back into use. Returns when the broker has the order.
    ///
    /// Errors: [`ErrorKind::NotFound`] if there is no such node; [`ErrorKind::Refused`] if the caller is not the
    /// administrator.
    pub fn drain(&self, order: &DrainNode) -> Result<(), Error> {
        self.inner.check()?;
        self.inner.session.broker.drain(order)
    }

    /// Returns what published files lack: copies on nodes that are lost, or that are being drained.
    ///
    /// Errors: the broker is of an earlier version.
    pub fn repairs(&self) -> Result<RepairsListed, Error> {
        self.inner.check()?;
        self.inner.session.broker.repairs()
    }

    fn published_name(&self, name: &str) -> Result<Name, Error> {
        Name::new(name).map_err(|_| Error::new(ErrorKind::NotFound, format!("no far file {name:?}")))
    }

    /// Reports whether this session has a private file `name`. Sends no request.
    pub fn has_private(&self, name: &str) -> bool {
        self.inner.files().contains_key(name)
    }

    /// Reports whether a file `name` exists, private or published.
    pub fn exists(&self, name: &str) -> Result<bool, Error> {
        if self.has_private(name) {
            return Ok(true);
        }
        let wanted = |info: &FileInfo| info.name == name;
        Ok(self.list_published(name)?.iter().any(wanted))
    }

    /// Deletes a file: frees its memory and its name.
    pub fn delete(&self, name: &str) -> Result<(), Error> {
        self.inner.check()?;
        if self.delete_private(name) {
            return Ok(());
        }
        let by = ByName { name: self.published_name(name)? };
        let dropped = self.inner.session.broker.ask(&Request::DropName(by));
        answer_of!(
            dropped.map_err(|error| error.during(format_args!("deleting far file {name:?}")))?,
            DropName
        )?;
        Ok(())
    }

    /// Deletes a private file of this session. Returns true if there was one.
    pub(crate) fn delete_private(&self, name: &str) -> bool {
        let private = self.inner.files().remove(name);
        private.as_ref().map(FarFile::delete).is_some()
    }

    /// Renames a file. The new name must be free.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        self.inner.check()?;
        let name = Name::new(to).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("invalid far file name {to:?}: {error}"))
        })?;
        {
            let mut files = self.inner.files();
            if files.contains_key(to) {
                return Err(Error::new(ErrorKind::Exists, format!("a far file named {to:?} exists already")));
            }
            if let Some(file) = files.remove(from) {
                file.set_name(to.to_owned());
                files.insert(to.to_owned(), file);
                return Ok(());
            }
        }
        let rename = Request::RenameName(Rename { from: self.published_name(from)?, to: name });
        let renamed = self.inner.session.broker.ask(&rename);
        answer_of!(
            renamed.map_err(|error| error.during(format_args!("renaming far file {from:?}")))?,
            RenameName
        )?;
        Ok(())
    }

    /// Seals a pinned file of this session (makes it immutable) and publishes it under its name; see `spec/wire.md`,
    /// "Publish". Open handles can still read it.
    pub fn publish(&self, name: &str, if_taken: IfTaken) -> Result<(), Error> {
        self.inner.check()?;
        let file = self.inner.files().get(name).cloned();
        let file = file.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("this session has no far file {name:?}"))
        })?;
        file.publish(if_taken).map_err(|error| error.during(format_args!("publishing far file {name:?}")))?;
        let mut files = self.inner.files();
        if files.get(name).is_some_and(|listed| listed.same_file(&file)) {
            files.remove(name);
        }
        Ok(())
    }

    /// Returns the files whose names begin with `prefix`, private and published, ordered by name.
    pub fn list(&self, prefix: &str) -> Result<Vec<FileInfo>, Error> {
        self.inner.check()?;
        let mut all: BTreeMap<String, FileInfo> =
            self.list_published(prefix)?.into_iter().map(|info| (info.name.clone(), info)).collect();
        all.extend(self.list_private(prefix).into_iter().map(|info| (info.name.clone(), info)));
        Ok(all.into_values().collect())
    }

    /// Returns this session's private files whose names begin with `prefix`. Sends no request.
    pub fn list_private(&self, prefix: &str) -> Vec<FileInfo> {
        let files = self.inner.files();
        let from = files.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        from.map(|(name, file)| FileInfo {
            name: name.clone(),
            bytes: file.length(),
            class: file.class(),
            is_published: file.is_published(),
            is_lost: false,
        })
        .collect()
    }

    fn list_published(&self, prefix: &str) -> Result<Vec<FileInfo>, Error> {
        let names = self.names(prefix)?;
        let describe = |info: NameInfo| FileInfo {
            name: info.name.to_string(),
            bytes: info.bytes,
            class: info.class,
            is_published: true,
            is_lost: info.lost,
        };
        Ok(names.into_iter().map(describe).collect())
    }

    /// Returns every published name that begins with `prefix`.
    fn names(&self, prefix: &str) -> Result<Vec<NameInfo>, Error> {
        let text =
            |text: &str| Text::new(text).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()));
        let mut found: Vec<NameInfo> = Vec::new();
        loop {
            let after = found.last().map_or("", |last| &*last.name);
            let request = Request::ListNames(ListNames { prefix: text(prefix)?, after: text(after)? });
            let page = answer_of!(self.inner.session.broker.ask(&request)?, ListNames)?;
            found.extend(page.names.iter().cloned());
            if !page.more || page.names.is_empty() {
                return Ok(found);
            }
        }
    }

    /// Leases memory for scratch files until at least `bytes` are free to use without a request to the broker.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        self.inner.check()?;
        self.inner
            .session
            .leases
            .reserve(Group::Class(FileClass::Scratch), bytes)
            .map_err(|error| error.during(format_args!("reserving {bytes} bytes")))
    }

    /// Returns the counters of this session.
    pub fn stats(&self) -> Stats {
        let session = &self.inner.session;
        session.counters().unprotected_bytes.store(session.repair.unprotected_bytes(), Ordering::Relaxed);
        session.counters().spun_ns.store(session.host().spun_ns(), Ordering::Relaxed);
        session.counters().read()
    }

    /// Returns the times of the requests for ranges of files that this session has sent, those of copies of mapped
    /// memory excepted.
    pub fn operation_times(&self) -> Vec<OperationTime> {
        self.inner.session.base.times.read()
    }

    /// Returns the state of the whole pool, as its broker reports it.
    pub fn status(&self) -> Result<StatusReport, Error> {
        self.inner.session.broker.status()
    }

    /// Returns the size in bytes of the pool's regions; the least if nodes differ. Waits as long as for a broker if the
    /// pool had nodes before: a broker that has just begun to lead hears of them one by one.
    ///
    /// Errors: [`ErrorKind::Exhausted`] if the pool has no memory nodes.
    pub fn region_bytes(&self) -> Result<u64, Error> {
        let session = &self.inner.session;
        let give_up = session.deadline(session.options().broker_patience_ms);
        loop {
            let nodes = self.status()?.nodes;
            if let Some(bytes) = nodes.iter().map(|node| node.info.region_bytes).min() {
                return Ok(bytes);
            }
            if session.hosts_seen() == 0 || session.host().now() >= give_up {
                return Err(Error::new(ErrorKind::Exhausted, "the pool has no memory nodes"));
            }
            session.base.pause(50)?;
        }
    }

    /// Returns which memory each node donates, as it told its broker. Nodes and brokers of version 1 of the protocol do
    /// not tell.
    pub fn list_memory(&self) -> Result<Vec<NodeMemory>, Error> {
        self.inner.session.broker.list_memory()
    }

    /// Ends the session. Its private files are deleted and all leases given back. Later use fails with
    /// [`ErrorKind::Closed`].
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, FarFile>> {
        self.files.lock()
    }

    fn check(&self) -> Result<(), Error> {
        self.session.check_open()
    }

    /// Returns the key of a new file. `None` if it is not encrypted.
    fn key(&self, class: FileClass, asked: Option<bool>) -> Result<Option<Arc<PageKey>>, Error> {
        match (class, asked) {
            (FileClass::Scratch, asked) if asked.unwrap_or(self.session.options().encrypt_scratch) => {
                self.session.page_key().map(Some)
            }
            (FileClass::Scratch, _) | (_, None | Some(false)) => Ok(None),
            (class, Some(true)) => {
                let message = format!("files of class {class} cannot be encrypted; only scratch files can");
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    fn protection(&self, class: FileClass, asked: Option<Protection>) -> Result<Protection, Error> {
        // The nodes of an embedded pool are in this process and end together with it, so no copy could survive them.
        let is_embedded = || self.embedded.lock().is_some();
        let default = || match self.session.hosts() {
            _ if is_embedded() => Protection::None,
            0 | 1 => Protection::Local,
            _ => Protection::Mirror,
        };
        match (class, asked) {
            (FileClass::Scratch, asked) if !matches!(asked, Some(Protection::Rs { .. })) => {
                Ok(asked.or(self.session.options().protection).unwrap_or_else(default))
            }
            (FileClass::Pinned, None) if is_embedded() => Ok(Protection::None),
            (FileClass::Pinned, None) => Ok(self.session.default_protection()),
            (FileClass::Pinned, Some(asked @ (Protection::Mirror | Protection::Rs { .. }))) => {
                self.session.check_hosts(asked)
            }
            (_, None | Some(Protection::None)) => Ok(Protection::None),
            (_, Some(other)) => {
                let permitted = match class {
                    FileClass::Pinned => "none, mirror or rs(DATA,PARITY)",
                    FileClass::Scratch => "none, mirror or local",
                    FileClass::Cache => "none",
                };
                let message =
                    format!("protection {other} is not possible for files of class {class}; use {permitted}");
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    fn close(&self) {
        let mut embedded = self.embedded.lock();
        if self.session.is_forked() {
            // The threads of these objects do not exist in a forked process, and the connections belong to the parent.
            std::mem::forget(embedded.take());
            std::mem::forget(self.keeper.lock().take());
            self.session.abandon();
            return;
        }
        let files = std::mem::take(&mut *self.files());
        for file in files.values() {
            file.delete();
        }
        self.session.close();
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.join();
        }
        drop(embedded.take());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
