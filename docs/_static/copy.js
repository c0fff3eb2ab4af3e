// A button on each block of code that copies it, without the prompts of a console.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const lines = block.textContent.trimEnd().split("\n");
      const typed = lines.filter((line) => /^(\$|>>>|\.\.\.) ?/.test(line));
      await navigator.clipboard.writeText((typed.length ? typed : lines).map((line) => line.replace(/^(\$|>>>|\.\.\.) ?/, "")).join("\n"));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1200);
    });
    block.parentElement.append(button);
  }
});
