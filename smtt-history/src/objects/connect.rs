//! The client of a store: credentials and endpoint from the environment, and the limits of each request.

use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http_body_util::{BodyExt as _, Limited};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use url::Url;

use super::bucket::{Object, POINTER};
use super::hdfs::{self, Hdfs};

/// Bytes of a response at most: a page of a listing, or [`super::bucket::CHUNK`] of an object.
const ANSWER: usize = 24 << 20;
/// Retries of a request, and their time limit.
const RETRIES: (usize, Duration) = (5, Duration::from_secs(20));
/// First and longest pause between retries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Characters of a store's message that are shown.
const SHOWN: usize = 300;

/// Substrings of the addresses of services from which a machine gets credentials.
const SERVICES: [&str; 6] = [
    "169.254.169.254",
    "metadata.google.internal",
    "/latest/api/token",
    "/latest/meta-data",
    "/computeMetadata/",
    "/metadata/identity/",
];

/// A page of a listing. Names are whole keys.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// What is below the prefix.
    pub(super) objects: Vec<Object>,
    /// Names of folders, where only these were asked for.
    pub(super) folders: Vec<String>,
    /// Whether another page follows.
    pub(super) has_more: bool,
}

/// An object that is being read.
pub(super) struct Read {
    pub(super) version: UpdateVersion,
    pub(super) bytes: BoxStream<'static, object_store::Result<Bytes>>,
}

/// The operations of a store that this program uses.
#[async_trait]
pub(super) trait Remote: Send + Sync {
    /// Lists what is below a prefix; with `is_flat` only the names of folders up to the next slash.
    fn pages<'a>(
        &'a self,
        prefix: &str,
        is_flat: bool,
    ) -> BoxStream<'a, object_store::Result<Page>>;

    /// Describes an object.
    async fn object(&self, key: &Path) -> object_store::Result<Object>;

    /// Reads an object under the condition and in the range of the options.
    async fn read(&self, key: &Path, options: GetOptions) -> object_store::Result<Read>;

    /// Writes an object; under a condition only an application's pointer.
    async fn write(&self, key: &Path, bytes: Bytes, mode: PutMode) -> object_store::Result<()>;

    /// Begins an object that is written in pieces.
    async fn upload(&self, key: &Path) -> object_store::Result<Box<dyn MultipartUpload>>;

    /// Deletes an object.
    async fn remove(&self, key: &Path) -> object_store::Result<()>;

    /// Says that a request had no answer in time.
    fn unanswered(&self) {}

    /// Whether objects grow, so that the length of one in a listing may be more than what can be read.
    fn grows(&self) -> bool {
        false
    }

    /// Name of what an application's pointer is in the store.
    fn pointer(&self) -> &'static str {
        POINTER
    }
}

fn object(meta: ObjectMeta) -> Object {
    Object {
        name: meta.location.to_string(),
        size: meta.size,
        tag: meta.e_tag,
        modified_ms: meta.last_modified.timestamp_millis(),
    }
}

#[async_trait]
impl<T: ObjectStore + PaginatedListStore> Remote for T {
    fn pages<'a>(
        &'a self,
        prefix: &str,
        is_flat: bool,
    ) -> BoxStream<'a, object_store::Result<Page>> {
        let prefix = prefix.to_owned();
        let next = move |token: Option<Option<String>>| {
            let prefix = prefix.clone();
            async move {
                let Some(page_token) = token else {
                    return Ok(None);
                };
                let options = PaginatedListOptions {
                    page_token,
                    delimiter: is_flat.then(|| "/".into()),
                    ..Default::default()
                };
                let page = self.list_paginated(Some(&prefix), options).await?;
                let (objects, folders) = (page.result.objects, page.result.common_prefixes);
                let names = Page {
                    objects: objects.into_iter().map(object).collect(),
                    folders: folders.iter().map(ToString::to_string).collect(),
                    has_more: page.page_token.is_some(),
                };
                Ok(Some((names, page.page_token.map(Some))))
            }
        };
        stream::try_unfold(Some(None), next).boxed()
    }

    async fn object(&self, key: &Path) -> object_store::Result<Object> {
        self.head(key).await.map(object)
    }

    async fn read(&self, key: &Path, options: GetOptions) -> object_store::Result<Read> {
        let answer = self.get_opts(key, options).await?;
        Ok(Read {
            version: UpdateVersion {
                e_tag: answer.meta.e_tag.clone(),
                version: answer.meta.version.clone(),
            },
            bytes: answer.into_stream(),
        })
    }

    async fn write(&self, key: &Path, bytes: Bytes, mode: PutMode) -> object_store::Result<()> {
        let put = self.put_opts(key, PutPayload::from(bytes), PutOptions::from(mode));
        put.await.map(drop)
    }

    async fn upload(&self, key: &Path) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.put_multipart(key).await
    }

    async fn remove(&self, key: &Path) -> object_store::Result<()> {
        self.delete(key).await
    }
}

/// Aborts responses that are longer than the limit.
#[derive(Debug)]
struct Bounded<T>(T);

impl HttpConnector for Bounded<ReqwestConnector> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Bounded(self.0.connect(options)?)))
    }
}

#[async_trait]
impl HttpService for Bounded<HttpClient> {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await?;
        Ok(answer.map(|body| {
            let body = Limited::new(body, ANSWER);
            HttpResponseBody::new(
                body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Decode, error)),
            )
        }))
    }
}

/// The client of the store that an address names, and the prefix.
pub(super) fn connect(url: &Url) -> Result<(Arc<dyn Remote>, Path), Error> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that the process has a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: PAUSE.0,
            max_backoff: PAUSE.1,
            base: 2.0,
        },
        max_retries: RETRIES.0,
        retry_timeout: RETRIES.1,
    };
    let connector = || Bounded(ReqwestConnector::default());
    let path = Path::from_url_path(url.path())?;
    if url.scheme() == "hdfs" {
        return Ok((Arc::new(Hdfs::open(url)), path));
    }
    let address = url.to_string();
    let store: Arc<dyn Remote> = match url.scheme() {
        "s3" => Arc::new(
            AmazonS3Builder::from_env()
                .with_url(address)
                .with_retry(retry)
                .with_http_connector(connector())
                .build()?,
        ),
        "gs" => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_url(address)
                .with_retry(retry)
                .with_http_connector(connector())
                .build()?,
        ),
        _ => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_url(address)
                .with_retry(retry)
                .with_http_connector(connector())
                .build()?,
        ),
    };
    Ok((store, path))
}

/// An error in one line, without addresses, queries and bodies: these may contain credentials.
pub(super) fn line(error: &Error) -> String {
    if let Error::Generic { store, source } = error
        && *store == hdfs::STORE
    {
        return source.to_string();
    }
    let text = error.to_string();
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map(|(code, _)| code)
        .filter(|code| code.len() <= 64 && code.bytes().all(|it| it.is_ascii_alphanumeric()));
    let code = code.map_or(String::new(), |code| format!(" ({code})"));
    let what = match error {
        Error::NotFound { .. } => "the object or the bucket does not exist",
        Error::AlreadyExists { .. } | Error::Precondition { .. } => {
            "the object has changed meanwhile"
        }
        Error::PermissionDenied { .. } => {
            "the store refuses access: check the credentials in the environment and the bucket's policy"
        }
        Error::Unauthenticated { .. } => {
            "the store does not know the credentials in the environment"
        }
        Error::InvalidPath { .. } => "the listing has a name that no path has: remove that object",
        _ if SERVICES.iter().any(|it| text.contains(it)) => {
            "no credentials: the environment has none (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, GOOGLE_APPLICATION_CREDENTIALS for Google, AZURE_STORAGE_ACCOUNT_KEY for Azure), and this machine has no service that gives them"
        }
        _ if text.contains("Account must be specified") => {
            "the environment has no account: set AZURE_STORAGE_ACCOUNT_NAME"
        }
        _ if text.contains("error sending request") => {
            "the store cannot be reached: check its endpoint (AWS_ENDPOINT_URL for servers of S3's protocol, GOOGLE_BASE_URL, AZURE_STORAGE_ENDPOINT)"
        }
        _ => return plain(&text) + &code,
    };
    what.to_owned() + &code
}

/// A message without addresses, bodies and control characters.
fn plain(text: &str) -> String {
    // A body begins with its first tag.
    let text = text.split_once('<').map_or(text, |(front, _)| front);
    // Before the dash is what was asked; the caller names the object.
    let text = text.split_once(" - ").map_or(text, |(_, why)| why);
    let words = text.split_whitespace().map(|word| {
        if word.contains("://") {
            "(address)"
        } else if word.contains('?') || word.contains('&') {
            "(parameters)"
        } else {
            word
        }
    });
    let text = words.collect::<Vec<_>>().join(" ");
    let text: String = text
        .chars()
        .filter(|it| !smtt_model::text::is_harmful(*it))
        .take(SHOWN)
        .collect();
    text.trim_end_matches([':', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_neither_credentials_nor_bodies() {
        let of = |text: &str| Error::Generic {
            store: "S3",
            source: text.to_owned().into(),
        };
        let said = line(&of(
            "Error performing GET https://a.blob.example/c?sig=SECRET&se=1 in 3s, after 2 retries - Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code><AWSAccessKeyId>AKID</AWSAccessKeyId></Error>\n",
        ));
        assert_eq!(
            said,
            "Server returned non-2xx status code: 503 Service Unavailable (SlowDown)"
        );
        let denied = Error::PermissionDenied {
            path: "x?sig=SECRET".to_owned(),
            source: "<Code>SignatureDoesNotMatch</Code>SECRET".into(),
        };
        let said = line(&denied);
        assert!(
            said.contains("(SignatureDoesNotMatch)") && !said.contains("SECRET"),
            "{said}"
        );
    }
}
