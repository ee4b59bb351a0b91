use crate::ignore::RuleList;
use base::RelPath;

/// Files that most likely hold secrets, in gitignore's syntax. Untracked ones stay out unless they are included by
/// name; tracked ones are in the history anyway, go in, and are warned of.
const PATTERNS: &str = "\
.env
.env.*
*.env
.envrc
!.env.example
!.env.sample
!.env.template
!.env.dist
!.env.*.example
!.env.*.sample
!.env.*.template
!.env.*.dist
!example.env
!sample.env
!template.env
id_rsa
id_dsa
id_ecdsa
id_ecdsa_sk
id_ed25519
id_ed25519_sk
*.pem
*.key
*.ppk
*.p8
*.p12
*.pfx
*.jks
*.keystore
*.kdbx
*.ovpn
*.mobileprovision
.netrc
_netrc
.pypirc
.pgpass
.my.cnf
.htpasswd
.git-credentials
.dockercfg
**/.aws/credentials
**/.docker/config.json
**/.ssh/*
!**/.ssh/*.pub
!**/.ssh/known_hosts
**/.gnupg/**
**/.kube/config
**/.config/gcloud/**
**/.azure/**
kubeconfig
*.kubeconfig
kubeconfig.y*ml
credentials
credentials.json
client_secret*.json
*service-account*.json
*service_account*.json
*serviceaccount*.json
application_default_credentials.json
gcp-key*.json
secrets.json
secrets.y*ml
secrets.toml
*.tfvars
*.tfvars.json
!example.tfvars
!*.example.tfvars
terraform.tfstate
terraform.tfstate.*
*.tfstate
*.tfstate.backup
.terraformrc
terraform.rc
.vault-token
.vault_pass*
.boto
.s3cfg
**/.cargo/credentials
**/.cargo/credentials.toml
**/.gem/credentials
auth.json
master.key
";

/// Files that hold a secret only when one of these words is in them.
const WORDS: [(&[u8], &[&[u8]]); 4] = [
    (b".npmrc", &[b"_authToken", b"_auth", b"_password"]),
    (b".yarnrc.yml", &[b"npmAuthToken", b"npmAuthIdent"]),
    (b"pip.conf", &[b"@"]),
    (b".condarc", &[b"/t/", b"@"]),
];

/// The most of a file that is searched for [`WORDS`].
pub(crate) const MAX_SEARCHED: u64 = 64 << 10;

/// Knows what likely secrets are called.
#[derive(Debug)]
pub(crate) struct Secrets(RuleList);

/// What a file's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspicion {
    No,
    Yes,
    /// It depends on what is in the file: ask [`holds_secret`].
    LookInside,
}

impl Secrets {
    pub(crate) fn new() -> Self {
        Self(RuleList::parse(&RelPath::root(), PATTERNS.as_bytes()))
    }

    /// What the name of the file `path` (below the workspace's root) says.
    pub(crate) fn suspect(&self, path: &[u8]) -> Suspicion {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if self.0.verdict(path, false) == Some(true) {
            Suspicion::Yes
        } else if WORDS.iter().any(|(file, _)| *file == name) {
            Suspicion::LookInside
        } else {
            Suspicion::No
        }
    }
}

/// Whether a file of which [`Secrets::suspect`] said [`Suspicion::LookInside`] holds a secret, by its first bytes.
pub(crate) fn holds_secret(path: &[u8], bytes: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    WORDS
        .iter()
        .filter(|(file, _)| *file == name)
        .flat_map(|(_, words)| words.iter())
        .any(|word| bytes.windows(word.len()).any(|window| window == *word))
}

#[cfg(test)]
mod tests;
