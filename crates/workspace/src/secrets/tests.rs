use super::{Secrets, Suspicion, holds_secret};

#[test]
fn names_of_likely_secrets() {
    let secrets = Secrets::new();
    for path in [
        ".env",
        "app/.env.production",
        "prod.env",
        "id_rsa",
        "keys/id_ed25519",
        "server.pem",
        "tls/server.key",
        "a.p12",
        "a.pfx",
        "release.jks",
        ".netrc",
        ".pypirc",
        "home/.aws/credentials",
        ".docker/config.json",
        ".ssh/config",
        "service-account.json",
        "my-service-account-key.json",
        ".git-credentials",
        "kubeconfig",
        ".kube/config",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "prod.tfvars",
        "prod.auto.tfvars.json",
        "client_secret_1.json",
        "credentials.json",
        ".envrc",
        ".gnupg/private-keys-v1.d/x.key",
        ".vault-token",
        "config/master.key",
    ] {
        assert_eq!(secrets.suspect(path.as_bytes()), Suspicion::Yes, "{path}");
    }
    for path in [
        ".env.example",
        ".env.sample",
        "x/.env.template",
        ".env.dist",
        ".env.local.example",
        "example.env",
        "environment",
        "id_rsa.pub",
        ".ssh/id_ed25519.pub",
        "keyboard.c",
        "src/key.rs",
        "pem.txt",
        "config.json",
        "credentials.py",
        "example.tfvars",
        "README.md",
        ".ssh/known_hosts",
    ] {
        assert_eq!(secrets.suspect(path.as_bytes()), Suspicion::No, "{path}");
    }
}

#[test]
fn names_that_need_a_look_inside() {
    let secrets = Secrets::new();
    assert_eq!(secrets.suspect(b"web/.npmrc"), Suspicion::LookInside);
    assert!(holds_secret(
        b"web/.npmrc",
        b"//registry.example.org/:_authToken=abc\n"
    ));
    assert!(!holds_secret(b"web/.npmrc", b"save-exact=true\n"));
    assert!(holds_secret(
        b"pip.conf",
        b"index-url = https://user:pass@example.org/simple\n"
    ));
}
