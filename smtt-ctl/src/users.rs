//! Names of users. The daemon knows users by number; only the client asks the users database.

use std::cell::RefCell;
use std::collections::HashMap;

use nix::unistd::{Uid, User};

thread_local! {
    static NAMES: RefCell<HashMap<u32, String>> = RefCell::default();
}

/// Name of a user; the number where the database has none.
#[must_use]
pub fn name(uid: u32) -> String {
    NAMES.with_borrow_mut(|names| {
        let name = names.entry(uid).or_insert_with(|| {
            let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
            user.map_or_else(|| uid.to_string(), |user| user.name)
        });
        name.clone()
    })
}

/// A user on the command line: a number, or a name of the database.
pub(super) fn parse(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!(
            "there is no user {text:?} on this machine: give a number"
        )),
        Err(error) => Err(format!("the users database gives no {text:?}: {error}")),
    }
}

/// A title's part about the user of an application.
#[must_use]
pub fn of(uid: Option<u32>) -> String {
    uid.map_or_else(String::new, |uid| format!(", user {}", name(uid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert_eq!(name(0), "root");
        assert_eq!(name(4_123_456_789), "4123456789");
        assert_eq!(parse("root"), Ok(0));
        assert_eq!(parse("77"), Ok(77));
        assert!(parse("no such user").is_err());
    }
}
