// What scrolls sideways can be scrolled from the keyboard, too.
const SCROLLS = ".table-wrapper, .highlight pre, pre, .content";
function reach() {
  for (const box of document.querySelectorAll(SCROLLS)) {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reach);
addEventListener("resize", reach);
