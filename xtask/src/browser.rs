//! A browser without a screen, driven through WebDriver. <https://www.w3.org/TR/webdriver2/>

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::paths::Paths;
use crate::process::{Running, free_port, wait_for};
use crate::witness;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long the browser may take for an answer or a state.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A step for [`Browser::frames`]: moves the time line to and fro and zooms, as held keys do.
pub const MOVE_TIME_LINE: &str = "const at = (window.turn = (window.turn || 0) + 1);
    const key = at % 120 < 40 ? 'ArrowRight' : at % 120 < 80 ? 'ArrowLeft' : at % 2 ? '+' : '-';
    document.getElementById('picture').dispatchEvent(new KeyboardEvent('keydown', {key}));";

/// Milliseconds between frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frames {
    /// Median of all frames.
    pub median: f64,
    /// 95 % of all frames took at most so long.
    pub slow: f64,
    /// The longest frame.
    pub longest: f64,
    /// Median of the second with the longest median.
    pub worst_second: f64,
}

impl Frames {
    /// Of the frames of each second; none where a second has no frame.
    fn of(mut seconds: Vec<Vec<f64>>) -> Option<Self> {
        let middle = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied()
        };
        let medians: Option<Vec<f64>> = seconds.iter_mut().map(middle).collect();
        let mut all = seconds.concat();
        let median = middle(&mut all)?;
        Some(Self {
            median,
            slow: all[all.len() * 95 / 100],
            longest: *all.last()?,
            worst_second: medians?.into_iter().fold(0.0, f64::max),
        })
    }
}

/// A browser with one window; dropping it ends it.
pub struct Browser {
    shown: Running,
    _driver: Running,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts the driver and the browser.
    ///
    /// # Errors
    /// When set-up has not unpacked them, or one does not start.
    pub fn start(paths: &Paths, folder: &Path) -> Result<Self> {
        let chromium = paths.chromium();
        let port = free_port()?;
        let mut command = chromium.driver();
        command.arg(format!("--port={port}"));
        let driver = Running::start("chromedriver", &mut command, &folder.join("driver.log"))
            .context("no browser: run `cargo xtask setup`")?;
        // The driver gives a browser without a screen no page to begin with, and then waits for one.
        let debugging = free_port()?;
        let mut command = chromium.browser();
        command
            // As root Chromium has no sandbox; it only opens this test's server.
            .args([
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--enable-automation",
            ])
            .args(["--hide-scrollbars", "--window-size=1400,1000"])
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .arg(format!("--remote-debugging-port={debugging}"))
            .arg("about:blank");
        let shown = Running::start("Chromium", &mut command, &folder.join("browser.log"))?;
        let mut browser = Self {
            shown,
            _driver: driver,
            port,
            session: String::new(),
        };
        wait_for("chromedriver answers", LIMIT, || {
            Ok(browser.request("GET", "/status", None).ok())
        })?;
        wait_for("the browser listens", LIMIT, || {
            Ok(TcpStream::connect(("127.0.0.1", debugging)).ok())
        })?;
        let options = json!({"debuggerAddress": format!("127.0.0.1:{debugging}")});
        let wanted = json!({
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
            // The driver's own limit is half a minute, which a query of a large trace may take on a busy machine.
            "timeouts": {"script": LIMIT.as_millis() as u64},
        });
        let made = browser.request(
            "POST",
            "/session",
            Some(&json!({"capabilities": {"alwaysMatch": wanted}})),
        )?;
        let session = made["sessionId"].as_str();
        browser.session = session.context("the driver gave no session")?.to_owned();
        Ok(browser)
    }

    /// Opens an address and waits until it is loaded.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command("url", &json!({"url": url})).map(drop)
    }

    /// The value of a function's body.
    ///
    /// # Errors
    /// When the script throws.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until a script gives true.
    ///
    /// # Errors
    /// When it does not within [`LIMIT`].
    pub fn until(&self, script: &str) -> Result<()> {
        wait_for(script, LIMIT, || {
            Ok((self.run(script)? == true).then_some(()))
        })
    }

    /// Clicks the element that a CSS selector finds first.
    ///
    /// # Errors
    /// When there is none, or it cannot be clicked.
    pub fn click(&self, selector: &str) -> Result<()> {
        let element = self.element(selector)?;
        self.command(&format!("element/{element}/click"), &json!({}))
            .map(drop)
    }

    fn element(&self, selector: &str) -> Result<String> {
        let found = self.command(
            "element",
            &json!({"using": "css selector", "value": selector}),
        )?;
        let element = found.as_object().and_then(|found| found.values().next());
        let element = element.and_then(Value::as_str).context("no element")?;
        Ok(element.to_owned())
    }

    /// Role and name of the element that a CSS selector finds first, as assistive technology is told.
    ///
    /// # Errors
    /// When there is none.
    pub fn exposed(&self, selector: &str) -> Result<(String, String)> {
        let element = self.element(selector)?;
        let told = |what: &str| -> Result<String> {
            let path = format!("/session/{}/element/{element}/{what}", self.session);
            let value = self.request("GET", &path, None)?;
            Ok(value.as_str().unwrap_or_default().to_owned())
        };
        Ok((told("computedrole")?, told("computedlabel")?))
    }

    /// Moves the pointer to a place in the window and clicks.
    ///
    /// # Errors
    /// When the place is outside of the window.
    pub fn click_at(&self, x: i64, y: i64) -> Result<()> {
        self.pointer(&[(x, y)])
    }

    /// Presses the button at the first place and releases it at the last.
    ///
    /// # Errors
    /// When a place is outside of the window.
    pub fn pointer(&self, path: &[(i64, i64)]) -> Result<()> {
        let go =
            |&(x, y): &(i64, i64)| json!({"type": "pointerMove", "duration": 20, "x": x, "y": y});
        let mut actions = Vec::new();
        for (at, place) in path.iter().enumerate() {
            actions.push(go(place));
            if at == 0 {
                actions.push(json!({"type": "pointerDown", "button": 0}));
            }
        }
        actions.push(json!({"type": "pointerUp", "button": 0}));
        let mouse = json!({"type": "pointer", "id": "mouse", "actions": actions});
        self.command("actions", &json!({"actions": [mouse]}))
            .map(drop)
    }

    /// Turns the wheel at a place, with Ctrl held down.
    ///
    /// # Errors
    /// When the place is outside of the window.
    pub fn wheel(&self, (x, y): (i64, i64), down: i64) -> Result<()> {
        let turn =
            json!({"type": "scroll", "x": x, "y": y, "deltaX": 0, "deltaY": down, "duration": 0});
        let wait = json!({"type": "pause", "duration": 0});
        let wheel = json!({"type": "wheel", "id": "wheel", "actions": [wait, turn]});
        let key = |kind: &str| json!({"type": kind, "value": "\u{e009}"});
        let keys = json!({"type": "key", "id": "keyboard", "actions": [key("keyDown"), wait]});
        self.command("actions", &json!({"actions": [keys, wheel]}))?;
        let path = format!("/session/{}/actions", self.session);
        self.request("DELETE", &path, None).map(drop)
    }

    /// Memory that only the process of the page has, in bytes, after a collection of its garbage: the kernel's figure of the
    /// largest renderer.
    ///
    /// # Errors
    /// When the browser has no renderer.
    pub fn page_bytes(&self) -> Result<u64> {
        // https://chromedevtools.github.io/devtools-protocol/tot/HeapProfiler/#method-collectGarbage
        self.devtools("HeapProfiler.collectGarbage", &json!({}))?;
        let bytes = self.renderers()?.into_iter();
        let bytes = bytes.filter_map(|pid| witness::private_bytes(pid).ok());
        bytes.max().context("the browser has no renderer")
    }

    fn renderers(&self) -> Result<Vec<u32>> {
        let mut all = witness::descendants(self.shown.pid())?;
        all.retain(|pid| witness::command_line(*pid).contains("--type=renderer"));
        Ok(all)
    }

    /// Milliseconds between the frames of the screen while a script moves the page, for so many runs of a second. `step` is
    /// the body of a function that is called before each frame.
    ///
    /// # Errors
    /// When the script throws, or the screen shows no frame.
    pub fn frames(&self, step: &str, runs: u32) -> Result<Frames> {
        let script = format!(
            "const done = arguments[arguments.length - 1]; const step = () => {{ {step} }}; const times = []; let last = 0;
            const next = (now) => {{ if (last) times.push(now - last); last = now;
                if (times.reduce((sum, time) => sum + time, 0) > 1000) {{ done(times); return; }}
                step(); requestAnimationFrame(next); }};
            requestAnimationFrame(next);"
        );
        let mut seconds = Vec::new();
        for _ in 0..runs {
            let found = self.command("execute/async", &json!({"script": script, "args": []}))?;
            let times: Vec<f64> = serde_json::from_value(found).context("no frames")?;
            seconds.push(times);
        }
        Frames::of(seconds).context("the screen showed no frame")
    }

    /// Presses and releases keys, one after the other; special ones have code points of WebDriver.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn keys(&self, keys: &str) -> Result<()> {
        let press = |key: char| {
            let key = key.to_string();
            [
                json!({"type": "keyDown", "value": key}),
                json!({"type": "keyUp", "value": key}),
            ]
        };
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command("actions", &json!({"actions": [keyboard]}))
            .map(drop)
    }

    /// Size of the page in pixels, and whether the user prefers dark colours.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn look(&self, width: u32, height: u32, is_dark: bool) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({"features": [feature]}),
        )
    }

    /// Whether pages may run scripts of their own, from the next page on.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn scripts(&self, may_run: bool) -> Result<()> {
        let value = json!({"value": !may_run});
        self.devtools("Emulation.setScriptExecutionDisabled", &value)
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Result<()> {
        let all = json!({"cmd": command, "params": parameters});
        self.command("goog/cdp/execute", &all).map(drop)
    }

    /// Saves a picture of the window.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn picture(&self, file: &Path) -> Result<()> {
        let path = format!("/session/{}/screenshot", self.session);
        let text = self.request("GET", &path, None)?;
        let text = text.as_str().context("no picture")?;
        std::fs::write(file, decoded(text)?)?;
        Ok(())
    }

    /// Errors that the page's console has since the last question: scripts that failed, resources that the page's policy
    /// forbids.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let log = self.command("se/log", &json!({"type": "browser"}))?;
        let entries = log.as_array().into_iter().flatten();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        Ok(severe.map(|entry| entry["message"].to_string()).collect())
    }

    fn command(&self, path: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{path}", self.session);
        self.request("POST", &path, Some(body))
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let asked = self.answer(method, path, body);
        asked.with_context(|| format!("the browser, {method} {path}"))
    }

    fn answer(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        )?;
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 2 {
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
            line.clear();
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text)?;
        let mut answer: Value = serde_json::from_slice(&text)?;
        let value = answer["value"].take();
        if let Some(error) = value["error"].as_str() {
            bail!("{error}: {}", value["message"]);
        }
        Ok(value)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let path = format!("/session/{}", self.session);
            self.request("DELETE", &path, None).ok();
        }
    }
}

/// Bytes of base64.
fn decoded(text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| !matches!(byte, b'=' | b'\n')) {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("no base64: {byte}"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_second_is_not_hidden_by_good_ones() {
        let seconds = vec![vec![16.0; 60], vec![500.0, 16.0, 500.0], vec![16.0; 60]];
        let expected = Frames {
            median: 16.0,
            slow: 16.0,
            longest: 500.0,
            worst_second: 500.0,
        };
        assert_eq!(Frames::of(seconds), Some(expected));
        assert_eq!(Frames::of(vec![vec![16.0], vec![]]), None);
        assert_eq!(Frames::of(Vec::new()), None);
    }
}
