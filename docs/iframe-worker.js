// SPDX-License-Identifier: Apache-2.0
// Browsers start no Worker from a file: address. There the search runs in a hidden frame instead.
"use strict";

if (location.protocol === "file:") {
  // The theme's search looks for this name.
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = null;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<!doctype html><script src="${encodeURI(url)}"></script>`;
      frame.addEventListener("load", () => {
        this.frame = frame.contentWindow;
        // What the worker posts is for the page, not for its own window.
        this.frame.postMessage = (data) => {
          this.dispatchEvent(new MessageEvent("message", { data }));
        };
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
      document.body.append(frame);
    }

    postMessage(data) {
      if (this.frame) this.frame.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
  window.Worker = window.IFrameWorker;
}
