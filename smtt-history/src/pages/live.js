// A page of an application that runs: shows how old it is, and brings a newer one by a click, by r, or every so many seconds.
const bar = document.getElementById("live");
const age = document.getElementById("live-age");
/** The age that the server gave, and when it gave it. */
let given = bar ? Number(bar.dataset.age) : 0;
let since = performance.now();
let timer = 0;
let bring = () => location.reload();

const words = (ms) => {
  const s = Math.round(ms / 1000);
  return s < 120 ? s + " s" : s < 7200 ? Math.round(s / 60) + " min" :
    s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
};
const tell = () => { age.textContent = words(given + performance.now() - since); };

/** What a refresh does in place of loading the page again. */
export function onRefresh(handler) {
  bring = handler;
}

/** The age of an answer that came in place of the page; `undefined` where the application has ended. */
export function aged(ms) {
  if (!bar) return;
  if (ms === undefined) {
    clearInterval(timer);
    bar.textContent = "The application has ended: load the page again for all of it.";
    return;
  }
  given = ms;
  since = performance.now();
  bar.dataset.refreshed = String(Number(bar.dataset.refreshed || 0) + 1);
  if (age.isConnected) tell();
}

function every(seconds) {
  clearInterval(timer);
  timer = seconds ? setInterval(() => { if (!document.hidden) bring(); }, seconds * 1000) : 0;
  bar.dataset.refresh = String(seconds);
  for (const link of bar.querySelectorAll("a[data-every]")) {
    if (Number(link.dataset.every) === seconds) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  }
}

if (bar) {
  setInterval(() => { if (age.isConnected) tell(); }, 1000);
  bar.addEventListener("click", (event) => {
    const link = event.target instanceof HTMLAnchorElement ? event.target : null;
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (link.dataset.every === undefined) {
      bring();
      return;
    }
    // The script of the page may have changed its address since the server made the links.
    const url = new URL(location.href);
    if (link.dataset.every === "0") url.searchParams.delete("refresh"); else url.searchParams.set("refresh", link.dataset.every);
    history.replaceState(null, "", url);
    every(Number(link.dataset.every));
  });
  document.addEventListener("keydown", (event) => {
    const isText = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (event.key !== "r" || event.ctrlKey || event.metaKey || event.altKey || isText) return;
    event.preventDefault();
    bring();
  });
  every(Number(bar.dataset.refresh));
}
