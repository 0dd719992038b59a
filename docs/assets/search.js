// The theme's search turns every word of a query into a prefix: "a" finds all words that begin with a. This removes
// the short and common words of a question before the query goes to the search worker (message type 2).
const COMMON = new Set(
  ("a about after all am an and another any are as at be been before but by can could did do does else for from get has have how i " +
    "if in into is it its just like many may me more much my no not of off on one or other our out should so some still than that " +
    "the their them then there these they this to two too up us was we were what when where which while who why will with without " +
    "would you your").split(" "),
)
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === 2 && typeof message.data === "string") {
    const words = message.data.split(/\s+/)
    const rare = words.filter(word => !COMMON.has(word.replace(/[^\p{L}\p{N}]/gu, "").toLowerCase()))
    if (rare.length) message = { ...message, data: rare.join(" ") }
  }
  return post.call(this, message, ...rest)
}
