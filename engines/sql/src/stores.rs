//! Object stores of files that are no far tables: this machine's file system, and buckets of S3 and compatible
//! services.

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry, ObjectStoreUrl};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::object_store::ObjectStore;
use datafusion::object_store::aws::AmazonS3Builder;
use farpool_cache::BlockCache;
use farpool_datafusion::CachedStore;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Time for which the version of an object in a bucket is trusted. The version of a local file is checked before each
/// read.
const BUCKET_FRESH_FOR: Duration = Duration::from_secs(1);
/// Time since its last change from which on a local file is cached. A younger file may still be changing, or may change
/// again without a new timestamp if the file system's clock is coarse.
const FILES_SETTLE: Duration = Duration::from_millis(2_100);

/// Registry of object stores. A bucket is opened when a query first names it, configured by the environment
/// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` and so on).
#[derive(Debug)]
struct Stores {
    known: DefaultObjectStoreRegistry,
    cache: Option<BlockCache>,
}

impl Stores {
    fn bucket(&self, store: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        match &self.cache {
            Some(cache) => Arc::new(CachedStore::new(store, cache, BUCKET_FRESH_FOR)),
            None => store,
        }
    }

    fn files(&self, store: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        match &self.cache {
            Some(cache) => Arc::new(CachedStore::new(store, cache, Duration::ZERO).settling(FILES_SETTLE)),
            None => store,
        }
    }
}

impl ObjectStoreRegistry for Stores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.known.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.known.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.known.get_store(url) {
            return Ok(store);
        }
        if url.scheme() != "s3" {
            let scheme = url.scheme();
            return Err(exec_datafusion_err!(
                "{url}: {scheme}:// is not supported; use a local path or s3://BUCKET/.."
            ));
        }
        let bucket = AmazonS3Builder::from_env().with_url(url.as_str()).build();
        let bucket = bucket.map_err(|error| DataFusionError::ObjectStore(Box::new(error)))?;
        let store = self.bucket(Arc::new(bucket));
        self.known.register_store(url, Arc::clone(&store));
        Ok(store)
    }
}

/// Returns the runtime with these stores, whose reads are cached if there is a cache.
pub(crate) fn with_stores(runtime: &RuntimeEnv, cache: Option<&BlockCache>) -> Result<Arc<RuntimeEnv>> {
    let stores = Stores { known: DefaultObjectStoreRegistry::new(), cache: cache.cloned() };
    let files = ObjectStoreUrl::local_filesystem();
    let here = stores.files(stores.known.get_store(files.as_ref())?);
    stores.known.register_store(files.as_ref(), here);
    Ok(Arc::new(RuntimeEnv { object_store_registry: Arc::new(stores), ..runtime.clone() }))
}
