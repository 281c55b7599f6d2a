//! Who runs the server.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// The account that the server runs under, if it cannot be our own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account(Option<Unprivileged>);

#[derive(Clone, Copy, Debug)]
struct Unprivileged {
    user: u32,
    group: u32,
}

impl Account {
    /// Our own account, or for root the first of `postgres` and `nobody`.
    pub(crate) fn choose() -> Result<Account> {
        // Our own entry in /proc belongs to whoever we are.
        let own = std::fs::metadata("/proc/self").map_or(1, |entry| entry.uid());
        if own != 0 {
            return Ok(Account(None));
        }
        let known = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        let found = ["postgres", "nobody"].iter().find_map(|name| find(&known, name));
        let found = found.context(
            "PostgreSQL refuses to run as root, and there is no account `postgres` or `nobody`",
        )?;
        Ok(Account(Some(found)))
    }

    /// Makes a command run under this account.
    pub(crate) fn adopt(self, command: &mut Command) {
        if let Some(Unprivileged { user, group }) = self.0 {
            command.uid(user).gid(group);
        }
    }

    /// Gives a directory to this account.
    pub(crate) fn own(self, path: &Path) -> Result<()> {
        if let Some(Unprivileged { user, group }) = self.0 {
            let given = chown(path, Some(user), Some(group));
            given.with_context(|| format!("cannot give {} to user {user}", path.display()))?;
        }
        Ok(())
    }
}

fn find(passwd: &str, name: &str) -> Option<Unprivileged> {
    let entry = passwd.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut fields = entry.split(':').skip(1);
    let (user, group) = (fields.next()?, fields.next()?);
    Some(Unprivileged { user: user.parse().ok()?, group: group.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_their_whole_name() {
        let passwd = "postgresql:x:7:8::/:/bin/sh\npostgres:x:101:104:PostgreSQL:/var:/bin/sh\n";
        let found = find(passwd, "postgres").expect("there");
        assert_eq!((found.user, found.group), (101, 104));
        assert!(find(passwd, "nobody").is_none());
    }
}
