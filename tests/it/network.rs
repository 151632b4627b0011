//! Connections to a Provider: proxies and certificates, on both transports.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pixir::scripted::{ModelScript, Reply};
use pixir::{
    Credential, Harness, HarnessOptions, Report, SessionStatus, SessionTarget, StartOptions,
    TransportSetting,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::TestEnv;
use crate::support::sign_in_env::{SignInEnv, run_command};
use crate::support::test_env::{PIXIR, send_and_finish};

/// A host name that only the proxy resolves.
const HOST: &str = "model.example";

/// The host of the issuer, as served behind the proxy.
const ISSUER: &str = "auth.openai.com";

/// A proxy in front of a TLS endpoint in front of a plain HTTP server.
struct ProxyAndTlsFront {
    /// The root certificate of the TLS endpoint, and of the proxy if it uses TLS.
    root: String,
    proxy: SocketAddr,
    /// Heads of the requests to the proxy.
    heads: Arc<Mutex<Vec<String>>>,
}

impl ProxyAndTlsFront {
    async fn before(server: &str, proxy_speaks: ProxyScheme) -> Self {
        let server = server.strip_prefix("http://").unwrap().split('/').next().unwrap();
        let root_key = KeyPair::generate().unwrap();
        let mut root = CertificateParams::new(Vec::new()).unwrap();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(root, root_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = [HOST, ISSUER, "127.0.0.1"].map(str::to_owned).to_vec();
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &root).unwrap();
        let leaf = leaf.der().clone();
        let front = tls_front(leaf.clone(), &key, server.parse().unwrap()).await;
        let heads = Arc::new(Mutex::new(Vec::new()));
        let mut proxy = proxy(front, heads.clone()).await;
        if proxy_speaks == ProxyScheme::Tls {
            proxy = tls_front(leaf, &key, proxy).await;
        }
        Self { root: root.pem(), proxy, heads }
    }

    /// First lines of the requests to the proxy.
    fn proxy_requests(&self) -> Vec<String> {
        let heads = self.heads.lock().unwrap();
        heads.iter().map(|head| head.lines().next().unwrap().to_owned()).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyScheme {
    Plain,
    Tls,
}

/// A test environment whose model is reached through a proxy and TLS.
struct ProxiedEnv {
    env: TestEnv,
    front: ProxyAndTlsFront,
}

impl ProxiedEnv {
    async fn new(transport: TransportSetting) -> Self {
        Self::behind(ProxyScheme::Plain, transport).await
    }

    async fn behind(proxy: ProxyScheme, transport: TransportSetting) -> Self {
        let script = ModelScript::answering(|_| Reply::says("ok"));
        let mut env = TestEnv::with_script(script).await;
        env.config.transport = Some(transport);
        env.config.stream.connect = Duration::from_secs(5);
        let front = ProxyAndTlsFront::before(&env.server.base_url(), proxy).await;
        env.write("root.pem", &front.root);
        Self { env, front }
    }

    async fn turn(&self, variables: &[(&str, &str)]) -> Result<(), Report> {
        let base_url = format!("https://{HOST}/v1");
        let mut environment: Vec<(OsString, OsString)> =
            vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
        environment.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        let harness = Harness::open(HarnessOptions {
            config: self.env.config.clone(),
            credential: Credential::new(Some("sk-proxied"), &base_url).unwrap(),
            environment,
            own_binary: PIXIR.into(),
        });
        let workspace = self.env.workspace();
        let start = StartOptions {
            workspace,
            session: SessionTarget::New,
            can_ask: false,
            mcp_servers: Vec::new(),
        };
        let conversation = harness.start(start).await.unwrap();
        match send_and_finish(&conversation, "hi").await {
            SessionStatus::Done => Ok(()),
            SessionStatus::Error { error, .. } => Err(error),
            other => panic!("{other:?}"),
        }
    }

    fn proxy_url(&self) -> String {
        format!("http://ada:opensesame@{}", self.front.proxy)
    }

    fn root(&self) -> String {
        self.env.workspace().join("root.pem").to_str().unwrap().to_owned()
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

async fn proxy(front: SocketAddr, heads: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let heads = heads.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = client.read_u8().await else { return };
                    head.push(byte);
                }
                heads.lock().unwrap().push(String::from_utf8(head).unwrap());
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
    for (transport, wire) in
        [(TransportSetting::Sse, "sse"), (TransportSetting::WebSocket, "websocket")]
    {
        let mut env = ProxiedEnv::new(transport).await;
        let proxy = env.proxy_url();
        let root = env.root();
        env.turn(&[("HTTPS_PROXY", &proxy), ("SSL_CERT_FILE", &root)]).await.unwrap();
        env.env.config.extra_roots = vec![root.into()];
        env.turn(&[("https_proxy", &proxy)]).await.unwrap();
        env.turn(&[("ALL_PROXY", &proxy), ("NO_PROXY", "other.example")]).await.unwrap();
        assert_eq!(env.front.proxy_requests(), vec![format!("CONNECT {HOST}:443 HTTP/1.1"); 3]);
        let wires: Vec<&str> = env.env.requests().iter().map(|request| request.transport).collect();
        assert_eq!(wires, [wire; 3]);
        // The credentials `ada:opensesame` in base64.
        let basic = "Proxy-Authorization: Basic YWRhOm9wZW5zZXNhbWU=";
        let heads = env.front.heads.lock().unwrap();
        assert!(heads.iter().all(|head| head.contains(basic)), "{heads:?}");
    }
}

#[tokio::test]
async fn an_untrusted_certificate_is_named_and_not_tried_again() {
    for transport in [TransportSetting::Sse, TransportSetting::WebSocket, TransportSetting::Auto] {
        let env = ProxiedEnv::new(transport).await;
        let proxy = env.proxy_url();
        let error = env.turn(&[("HTTPS_PROXY", &proxy)]).await.unwrap_err();
        assert_eq!(error.kind, "tls", "{error:?}");
        assert!(error.message.contains("certificate"), "{error:?}");
        assert!(error.next_actions().iter().any(|action| action.contains("tls.extra_roots")));
        assert_eq!(env.front.proxy_requests().len(), 1, "{transport:?}");
    }
}

#[tokio::test]
async fn what_is_spared_goes_directly_and_a_bad_setting_is_named_without_its_value() {
    let mut env = ProxiedEnv::new(TransportSetting::Auto).await;
    env.env.config.retry.max_attempts = 1;
    let proxy = env.proxy_url();
    let error = env.turn(&[("HTTPS_PROXY", &proxy), ("NO_PROXY", ".example")]).await.unwrap_err();
    assert_eq!(error.kind, "network", "{error:?}");
    assert_eq!(env.front.proxy_requests().len(), 0);
    let error = env.turn(&[("HTTPS_PROXY", "ftp://ada:opensesame@[::")]).await.unwrap_err();
    assert_eq!(error.kind, "invalid_config", "{error:?}");
    assert!(error.message.contains("HTTPS_PROXY") && !error.message.contains("opensesame"));
    let error = env.turn(&[("SSL_CERT_FILE", "/nowhere.pem")]).await.unwrap_err();
    assert!(error.message.contains("SSL_CERT_FILE: /nowhere.pem"), "{error:?}");
    env.env.write("bad.pem", "not a certificate");
    env.env.config.extra_roots = vec![env.env.workspace().join("bad.pem")];
    let error = env.turn(&[]).await.unwrap_err();
    assert!(error.message.contains("tls.extra_roots"), "{error:?}");
}

#[tokio::test]
async fn a_proxy_may_speak_tls_itself_and_a_socks_proxy_is_named_as_such() {
    for transport in [TransportSetting::Sse, TransportSetting::WebSocket] {
        let mut env = ProxiedEnv::behind(ProxyScheme::Tls, transport).await;
        env.env.config.extra_roots = vec![env.root().into()];
        let proxy = env.proxy_url().replace("http://", "https://");
        env.turn(&[("HTTPS_PROXY", &proxy)]).await.unwrap();
        assert_eq!(env.front.proxy_requests(), [format!("CONNECT {HOST}:443 HTTP/1.1")]);
        let proxy = env.proxy_url().replace("http://", "socks5://");
        let error = env.turn(&[("ALL_PROXY", &proxy)]).await.unwrap_err();
        assert_eq!(error.kind, "invalid_config", "{error:?}");
        assert!(error.message.contains("SOCKS") && !error.message.contains("opensesame"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_issuer_is_reached_through_the_same_proxy_and_trusts_the_same_roots() {
    let sign_in_env = SignInEnv::new().await;
    let front = ProxyAndTlsFront::before(&sign_in_env.issuer.base_url(), ProxyScheme::Plain).await;
    sign_in_env.sign_in(-10);
    let home = sign_in_env.auth_file().parent().unwrap().to_owned();
    let root = home.join("root.pem");
    std::fs::write(&root, &front.root).unwrap();
    let proxy = format!("http://ada:opensesame@{}", front.proxy);
    let pixir = |args: &[&str]| {
        let mut command = sign_in_env.command(args);
        command.env_remove("PIXIR_AUTH_ISSUER").env("HTTPS_PROXY", &proxy);
        command
    };
    // The root of the issuer's certificate is not configured yet.
    let run = run_command(pixir(&["hi"]).env("PIXIR_RETRY_MAX_ATTEMPTS", "1"));
    assert_ne!(run.code, Some(0));
    assert!(run.err.contains("certificate"), "{}", run.err);
    assert_eq!(sign_in_env.issuer.counts().requests, 0);
    // An unusable variable is named, and no request is repeated.
    let run = run_command(
        pixir(&["hi", "--json"]).env("https_proxy", "socks5://ada:opensesame@127.0.0.1"),
    );
    assert_eq!(run.envelope()["error"]["kind"], "invalid_config", "{}", run.out);
    assert!(!run.out.contains("opensesame") && !run.err.contains("opensesame"));
    let settings = json!({"tls": {"extra_roots": [root]}});
    std::fs::write(home.join("config.json"), settings.to_string()).unwrap();
    let run = run_command(&mut pixir(&["hi"])).assert_exit_code(0);
    assert!(run.out.contains("hello from the plan"), "{}", run.out);
    let goodbye = run_command(&mut pixir(&["logout"])).assert_exit_code(0);
    assert!(!goodbye.err.contains("could not be revoked"), "{}", goodbye.err);
    let tunnel = format!("CONNECT {ISSUER}:443 HTTP/1.1");
    assert!(
        front.proxy_requests().len() >= 3
            && front.proxy_requests().iter().all(|asked| *asked == tunnel)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_goes_the_way_of_the_model() {
    let sign_in_env = SignInEnv::new().await;
    let front = ProxyAndTlsFront::before(&sign_in_env.issuer.base_url(), ProxyScheme::Plain).await;
    std::fs::create_dir_all(sign_in_env.auth_file().parent().unwrap()).unwrap();
    let root = sign_in_env.auth_file().with_file_name("root.pem");
    std::fs::write(&root, &front.root).unwrap();
    let examine = |variables: &[(&str, String)]| {
        let mut doctor = sign_in_env.command(&["doctor", "--online", "--json"]);
        doctor
            .env_remove("PIXIR_AUTH_ISSUER")
            .envs(variables.iter().cloned())
            .env("HTTPS_PROXY", format!("http://{}", front.proxy))
            .env("SSL_CERT_FILE", &root);
        run_command(&mut doctor).envelope()
    };
    let assert_passed = |envelope: &Value, id: &str| {
        let checks = envelope["output"]["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["id"] == id).unwrap();
        assert_eq!(found["status"], "passed", "{found}");
    };
    let base_url = ("OPENAI_BASE_URL", format!("https://{HOST}/v1"));
    let with_key = examine(&[("OPENAI_API_KEY", "sk-proxied".to_owned()), base_url]);
    assert_passed(&with_key, "endpoint");
    // Without a key, the sign-in is checked too.
    let without_key = examine(&[]);
    assert_passed(&without_key, "issuer");
    let asked = front.proxy_requests();
    for host in [HOST, ISSUER] {
        assert!(asked.contains(&format!("CONNECT {host}:443 HTTP/1.1")), "{asked:?}");
    }
    // The issuer is probed without a secret.
    assert!(sign_in_env.issuer.counts().requests >= 2);
}
