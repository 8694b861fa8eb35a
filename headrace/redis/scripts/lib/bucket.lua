-- Buckets of API keys, which fill with time. The value is "<what it holds> <when that was>"; the key expires when the
-- bucket is full again.
local function level_of(bucket, a_second, full, room)
  local text = try('GET', bucket)
  local level, at = string.match(type(text) == 'string' and text or '', '^(%S+) (%d+)$')
  level, at = tonumber(level) or full, tonumber(at) or NOW_US
  return math.min(room, level + math.max(0, NOW_US - at) / 1e6 * a_second)
end

local function set_level(bucket, level, a_second, room)
  try('SET', bucket, string.format('%.6f', level) .. ' ' .. NOW, 'PX', math.ceil((room - level) / a_second * 1000) + 1000)
end

-- Takes tokens of an API key that may have so many a minute; a negative number returns them. What is taken beyond the
-- rest is a debt.
local function take_minutes_tokens(owner, minute, tokens)
  local bucket = keys.token_rate .. owner
  local level = level_of(bucket, minute / 60, minute, minute)
  set_level(bucket, math.min(minute, level - tokens), minute / 60, minute)
end
