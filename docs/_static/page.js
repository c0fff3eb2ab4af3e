// What the theme's pages lack: a button that copies a block of code, and what a keyboard or a screen reader needs.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const lines = block.textContent.trimEnd().split("\n");
      const typed = lines.filter((line) => /^(\$|>>>|\.\.\.) ?/.test(line)); // without prompts and results
      await navigator.clipboard.writeText((typed.length ? typed : lines).map((line) => line.replace(/^(\$|>>>|\.\.\.) ?/, "")).join("\n"));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1200);
    });
    block.parentElement.append(button);
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
  }
  for (const wide of document.querySelectorAll(".table-wrapper, .indextable")) {
    const look = () => wide.classList.toggle("more", wide.scrollLeft + wide.clientWidth < wide.scrollWidth - 1);
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
    for (const [of, happens] of [[wide, "scroll"], [window, "resize"]]) of.addEventListener(happens, look);
    look();
  }
  for (const head of document.querySelectorAll("p.caption[role=heading]")) head.setAttribute("aria-level", "2");
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "This page");
  for (const corner of document.querySelectorAll("th.head")) if (!corner.textContent.trim()) corner.replaceWith(document.createElement("td"));
});
