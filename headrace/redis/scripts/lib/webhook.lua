-- Sending the background task that notifies a webhook.
-- Sends the task for a job's end, as the submit wrote it, if `events` has the letter of the state. How the job ended is
-- noted, as its record may be gone when the task runs. Keys of another type do no harm.
local function send_webhook_task(id, events, state)
  local task = string.find(events, state, 1, true) and redis.call('HGET', JOB .. id, 'wh')
  if not task then return end
  redis.pcall('HSET', HOOK .. id, 's', state, 'en', NOW)
  redis.pcall('EXPIRE', HOOK .. id, HOOK_TTL_S)
  redis.pcall('LPUSH', TASKS, task)
end
