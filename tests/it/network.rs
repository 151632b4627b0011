//! The way to a Provider: proxies and certificates, alike on both transports.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pixir::scripted::{Reply, Script};
use pixir::{Credential, Door, Harness, Report, Start, Status, Transport, Which};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::House;
use crate::support::house::{PIXIR, say};

/// A host that exists for the proxy alone.
const HOST: &str = "model.example";

/// A model behind TLS behind a proxy.
struct Abroad {
    house: House,
    proxy: SocketAddr,
    /// The first lines of what the proxy was asked.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Abroad {
    async fn new(transport: Transport) -> Self {
        let script = Script::answering(|_| Reply::says("ok"));
        let mut house = House::scripted(script).await;
        house.config.transport = Some(transport);
        house.config.stream.connect = Duration::from_secs(5);
        let root_key = KeyPair::generate().unwrap();
        let mut root = CertificateParams::new(Vec::new()).unwrap();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(root, root_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf =
            CertificateParams::new(vec![HOST.to_owned()]).unwrap().signed_by(&key, &root).unwrap();
        house.write("root.pem", root.pem());
        let model = house.server.base_url();
        let model =
            model.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/v1")).unwrap();
        let front = tls_front(leaf.der().clone(), &key, model.parse().unwrap()).await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let proxy = proxy(front, asked.clone()).await;
        Self { house, proxy, asked }
    }

    async fn turn(&self, variables: &[(&str, &str)]) -> Result<(), Report> {
        let base_url = format!("https://{HOST}/v1");
        let mut environment: Vec<(OsString, OsString)> =
            vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
        environment.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        let harness = Harness::open(Door {
            config: self.house.config.clone(),
            credential: Credential::new(Some("sk-abroad"), &base_url).unwrap(),
            environment,
            own_binary: PIXIR.into(),
        });
        let workspace = self.house.workspace();
        let start = Start { workspace, session: Which::New, can_ask: false };
        let conversation = harness.start(start).await.unwrap();
        match say(&conversation, "hi").await {
            Status::Done => Ok(()),
            Status::Error { error, .. } => Err(error),
            other => panic!("{other:?}"),
        }
    }

    fn proxy_url(&self) -> String {
        format!("http://ada:opensesame@{}", self.proxy)
    }

    fn root(&self) -> String {
        self.house.workspace().join("root.pem").to_str().unwrap().to_owned()
    }
}

async fn tls_front(leaf: CertificateDer<'static>, key: &KeyPair, model: SocketAddr) -> SocketAddr {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![leaf], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                let mut server = TcpStream::connect(model).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    address
}

async fn proxy(front: SocketAddr, asked: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                asked.lock().unwrap().push(head.lines().next().unwrap().to_owned());
                client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
                let mut server = TcpStream::connect(front).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
    address
}

#[tokio::test]
async fn a_proxy_and_an_own_root_work_on_both_transports() {
    for (transport, wire) in [(Transport::Sse, "sse"), (Transport::WebSocket, "websocket")] {
        let mut abroad = Abroad::new(transport).await;
        let proxy = abroad.proxy_url();
        let root = abroad.root();
        abroad.turn(&[("HTTPS_PROXY", &proxy), ("SSL_CERT_FILE", &root)]).await.unwrap();
        abroad.house.config.extra_roots = vec![root.into()];
        abroad.turn(&[("https_proxy", &proxy)]).await.unwrap();
        abroad.turn(&[("ALL_PROXY", &proxy), ("NO_PROXY", "other.example")]).await.unwrap();
        assert_eq!(*abroad.asked.lock().unwrap(), vec![format!("CONNECT {HOST}:443 HTTP/1.1"); 3]);
        let wires: Vec<&str> =
            abroad.house.requests().iter().map(|request| request.transport).collect();
        assert_eq!(wires, [wire; 3]);
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_named_and_not_tried_again() {
    for transport in [Transport::Sse, Transport::WebSocket, Transport::Auto] {
        let abroad = Abroad::new(transport).await;
        let proxy = abroad.proxy_url();
        let error = abroad.turn(&[("HTTPS_PROXY", &proxy)]).await.unwrap_err();
        assert_eq!(error.kind, "tls", "{error:?}");
        assert!(error.message.contains("certificate"), "{error:?}");
        assert!(error.next_actions().iter().any(|action| action.contains("tls.extra_roots")));
        assert_eq!(abroad.asked.lock().unwrap().len(), 1, "{transport:?}");
    }
}

#[tokio::test]
async fn what_is_spared_goes_directly_and_a_bad_setting_is_named_without_its_value() {
    let mut abroad = Abroad::new(Transport::Auto).await;
    abroad.house.config.retry.max_attempts = 1;
    let proxy = abroad.proxy_url();
    let error =
        abroad.turn(&[("HTTPS_PROXY", &proxy), ("NO_PROXY", ".example")]).await.unwrap_err();
    assert_eq!(error.kind, "network", "{error:?}");
    assert_eq!(abroad.asked.lock().unwrap().len(), 0);
    let error = abroad.turn(&[("HTTPS_PROXY", "ftp://ada:opensesame@[::")]).await.unwrap_err();
    assert_eq!(error.kind, "invalid_config", "{error:?}");
    assert!(error.message.contains("HTTPS_PROXY") && !error.message.contains("opensesame"));
    let error = abroad.turn(&[("SSL_CERT_FILE", "/nowhere.pem")]).await.unwrap_err();
    assert!(error.message.contains("SSL_CERT_FILE: /nowhere.pem"), "{error:?}");
    abroad.house.write("bad.pem", "not a certificate");
    abroad.house.config.extra_roots = vec![abroad.house.workspace().join("bad.pem")];
    let error = abroad.turn(&[]).await.unwrap_err();
    assert!(error.message.contains("tls.extra_roots"), "{error:?}");
}
